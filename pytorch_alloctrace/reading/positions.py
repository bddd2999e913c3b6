"""Positions in a trace: steps, marks and regions, and how a user names a position.

A position is "end", "peak" (of allocated bytes), "peak:reserved", an event number (after that event), "step:N" (the end
of step N), "mark:NAME" (the first mark of that name; "mark:NAME#3": the third), "region:NAME" (where the first region
of that name begins), "region:NAME:end" (where it ends; "region:NAME#3", "region:NAME#3:end": the third), "12.5s" (that
long after the recording began) or a datetime.

Inside, a position is the number of the first event after it: `RecordedTrace.first_event_after`.
"""

from __future__ import annotations

import datetime
import difflib
import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import PositionError
from .names import MARK, REGION_BEGIN, REGION_END, STEP
from .table import Table

Position = int | str | datetime.datetime
PEAKS = ("peak", "peak:reserved")

_LARGEST = (1 << 63) - 2
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_NAMES_LISTED = 10
"""Names that an error lists at most."""

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Range:
    """Consecutive events: everything after one position, up to and including another."""

    first: int
    """Its first event."""
    end: int
    """The first event after it."""

    @property
    def since(self) -> int:
        """The position after which it begins."""
        return self.first - 1

    @property
    def until(self) -> int:
        """The position at which it ends."""
        return self.end - 1

    def has(self, events: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these events are in it."""
        return (events >= self.first) & (events < self.end)


def time_of(position: Position, begin_ns: int) -> int | None:
    """Nanoseconds since 1970 of a position that is given as a time; None for the others. A datetime without a time zone
    is local time, as everywhere in Python."""
    if isinstance(position, datetime.datetime):
        # A pandas.Timestamp has nanoseconds, and no `astimezone` without a zone.
        nanoseconds = int(getattr(position, "nanosecond", 0))
        exact: Any = getattr(position, "to_pydatetime", None)
        moment: datetime.datetime = position if exact is None else exact(warn=False)
        since_1970 = moment.astimezone(datetime.timezone.utc) - _EPOCH
        return (since_1970 // datetime.timedelta(microseconds=1)) * 1000 + nanoseconds
    seconds = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]*)?)s", position) if isinstance(position, str) else None
    return None if seconds is None else min(begin_ns + round(float(seconds[1]) * 1e9), _LARGEST)


@dataclass(frozen=True)
class Region:
    """A part of the run that the program named: the events after `begin_seq`, up to and including `end_seq`."""

    name: str
    number: int
    """From 1, among those of the same name."""
    begin_seq: int
    begin_ns: int
    end_seq: int | None
    """None if the trace ends before the region does."""
    end_ns: int | None


PositionEvent: TypeAlias = tuple[int, int, int, int, bool, int]
"""Kind, event, time, value, whether the program said so, and of a step how many of its kind came before it."""
LiveBytes: TypeAlias = Callable[[Sequence[int]], npt.NDArray[np.int64]]
"""What was live on some devices together at each of the position events."""


class PositionTable:
    """The steps, marks and regions of a trace, in order. Rows: (kind, seq, time_ns, number or name). ordinals: how many
    steps came before each; default: all steps are there. live_bytes: at each step; default: not known."""

    def __init__(
        self,
        rows: Sequence[tuple[int, int, int, Any]],
        ordinals: Sequence[int] | None = None,
        live_bytes: LiveBytes | None = None,
    ) -> None:
        steps = [row for row in rows if row[0] == STEP]
        self._marks = [row for row in rows if row[0] != STEP]
        # A damaged trace may hold any number; none may overflow 64-bit arithmetic.
        numbers = [(seq, time_ns, number) for _, seq, time_ns, number in steps]
        self._ends, self._times, self._numbers = (
            np.array([min(row[column], _LARGEST) for row in numbers], dtype=np.int64) for column in range(3)
        )
        self._live_bytes = live_bytes
        self.ordinals = np.array(range(len(steps)) if ordinals is None else ordinals, dtype=np.int64)
        """Of each step, how many came before it. In a long trace that is compacted some steps are left out."""

    @classmethod
    def of_events(
        cls, found: Sequence[PositionEvent], text: Callable[[int], str], live_bytes: LiveBytes | None = None
    ) -> PositionTable:
        """text: the name that a number stands for. live_bytes: at each of `found`; default: not known.

        A program that ends its steps itself, after each epoch perhaps, has no others: not those that its optimizers
        seemed to end before it first did.
        """
        said = next((seq for kind, seq, _, _, is_said, _ in found if kind == STEP and is_said), -1)
        kept = [row for row in found if row[0] != STEP or row[4] or row[1] > said]
        steps = [index for index, row in enumerate(found) if row[0] == STEP and (row[4] or row[1] > said)]
        ordinals: list[int] = []
        last: PositionEvent | None = None
        for row in kept:
            if row[0] == STEP:
                # A damaged trace may hold any number: they only rise.
                gap = row[5] - last[5] if last is not None and last[4] == row[4] else 1
                ordinals.append(ordinals[-1] + min(max(gap, 1), _LARGEST >> 20) if ordinals else 0)
                last = row
        return cls(
            [(kind, seq, time_ns, value if kind == STEP else text(value)) for kind, seq, time_ns, value, _, _ in kept],
            ordinals,
            None if live_bytes is None else lambda devices: live_bytes(devices)[steps],
        )

    def step_of(
        self, seq: npt.NDArray[np.integer[Any]], unknown: npt.NDArray[np.bool_] | None = None
    ) -> np.ma.MaskedArray[Any, Any]:
        """Return the step that each event belongs to; the event that ends a step is its last. Masked in a trace without
        steps, and where `unknown` is True."""
        if not len(self._ends):
            return np.ma.array(np.zeros(len(seq), np.int64), mask=np.ones(len(seq), np.bool_))
        numbers = np.append(self._numbers, self._numbers[-1] + 1)
        steps = numbers[np.searchsorted(self._ends, seq, side="left")].astype(np.int64)
        return np.ma.array(steps, mask=np.zeros(len(seq), np.bool_) if unknown is None else unknown)

    @property
    def highest_step(self) -> int:
        """The highest number that `step_of` gives; 0 in a trace without steps."""
        return int(self._numbers.max(initial=0)) + bool(len(self._numbers))

    @property
    def step_count(self) -> int:
        """How many steps there were, those included that a compacted trace leaves out."""
        return int(self.ordinals[-1]) + 1 if len(self.ordinals) else 0

    def whole_steps(self, within: Range) -> npt.NDArray[np.bool_]:
        """Which steps lie wholly within a range, from their first event to their last."""
        begins = np.append(0, self._ends + 1)[:-1]
        return (begins >= within.first) & (self._ends < within.end)

    def step_at(self, seq: int) -> int | None:
        """The step that an event belongs to; None in a trace without steps."""
        step = self.step_of(np.array([seq], dtype=np.int64))[0]
        return None if step is np.ma.masked else int(step)

    @property
    def step_ends(self) -> npt.NDArray[np.int64]:
        """The event that ends each step."""
        return self._ends

    def steps(self, devices: Sequence[int]) -> Table:
        """Return the steps that ended: step, seq, time_ns, live_bytes. devices: by index."""
        none = np.zeros(len(self._ends), np.int64)
        return Table(
            {
                "step": self._numbers,
                "seq": self._ends,
                "time_ns": self._times,
                "live_bytes": none if self._live_bytes is None else self._live_bytes(devices),
            }
        )

    @property
    def marks(self) -> Sequence[tuple[int, int, int, str]]:
        """The marks and the begins and ends of regions, in order: kind (a number), event, time, name."""
        return self._marks

    def first_event_after(self, position: str) -> int | None:
        """For "step:N", "mark:NAME" and "region:NAME"; None: the end of the trace. Raises PositionError."""
        kind, _, name = position.partition(":")
        if kind == "step":
            index = self._step_index(name)
            return int(self._ends[index]) + 1 if index < len(self._ends) else None
        if kind == "mark":
            return self._mark(name) + 1
        if kind == "region":
            ends = name.endswith(":end") and not any(region.name == name for region in self.regions)
            region = self.regions_named(name.removesuffix(":end") if ends else name)[0]
            seq = region.end_seq if ends else region.begin_seq
            return None if seq is None else seq + 1
        raise PositionError(
            f"{position!r} is not a valid position: use end, peak, peak:reserved, an event number, step:N, mark:NAME, "
            "region:NAME, region:NAME:end or a time such as 12.5s"
        )

    @functools.cached_property
    def regions(self) -> tuple[Region, ...]:
        """All regions, by their beginnings. An end belongs to the last region of its name that has none yet."""
        found: list[Region] = []
        open_regions: dict[str, list[int]] = {}
        counts: Counter[str] = Counter()
        for kind, seq, time_ns, name in self._marks:
            if kind == REGION_BEGIN:
                counts[name] += 1
                open_regions.setdefault(name, []).append(len(found))
                found.append(Region(name, counts[name], seq, time_ns, None, None))
            elif kind == REGION_END and open_regions.get(name):
                index = open_regions[name].pop()
                found[index] = replace(found[index], end_seq=seq, end_ns=time_ns)
        return tuple(found)

    def regions_named(self, name: str) -> list[Region]:
        """Those of that name, or "NAME#3": the third, "NAME#-1": the last. Raises PositionError if there is none."""
        return _named("region", name, [(region.name, region) for region in self.regions])

    def stretches_named(self, name: str) -> list[Region]:
        """Those of `regions_named` that lie in no other of them: what happens in nested ones counts once. (Of two
        regions of one name that overlap, one always lies in the other.)"""
        found: list[Region] = []
        for region in self.regions_named(name):
            outer = found[-1] if found else None
            if outer is None or (outer.end_seq is not None and outer.end_seq < region.begin_seq):
                found.append(region)
        return found

    def _step_index(self, name: str) -> int:
        # The step after the last one that ended has begun, too: it lasts to the end of the trace.
        numbers = np.append(self._numbers, self._numbers[-1:] + 1)
        if not re.fullmatch(r"-?[0-9]{1,18}", name):
            raise PositionError(f"'step:{name}' is not a valid position: use step:N with the number of a step")
        found = np.flatnonzero(numbers == int(name))
        if not len(found):
            known = f"it has steps {numbers.min()} to {numbers.max()}" if len(self._numbers) else "it has no steps"
            raise PositionError(f"the trace has no step {name}: {known}")
        return int(found[0])

    def _mark(self, name: str) -> int:
        marks = [(text, seq) for kind, seq, _, text in self._marks if kind == MARK]
        begins = [(region.name, region.begin_seq) for region in self.regions]
        known = {text for text, _ in marks}
        is_region = (
            name not in known and name.rpartition("#")[0] not in known and any(name == text for text, _ in begins)
        )
        return _named("mark", name, begins if is_region else marks)[0]


def _named(kind: str, name: str, known: Sequence[tuple[str, _Found]]) -> list[_Found]:
    """What has that name, or, of "NAME#3", the third that has. A name may itself contain "#"."""
    found = [value for text, value in known if text == name]
    if found:
        return found
    base, _, number = name.rpartition("#")
    found = [value for text, value in known if text == base]
    if not found or not re.fullmatch(r"-?[0-9]{1,9}", number):
        raise PositionError(
            f"the trace has no {kind} named {name!r}: {_listed(kind, name, [text for text, _ in known])}"
        )
    index = int(number) - 1 if int(number) > 0 else len(found) + int(number)
    if int(number) == 0 or not 0 <= index < len(found):
        raise PositionError(f"the trace has no {kind} {name!r}: it has {base}#1 to {base}#{len(found)}")
    return [found[index]]


def _listed(kind: str, name: str, names: Sequence[str]) -> str:
    """The names that there are, those like the one asked for first."""
    counts = Counter(names)
    if not counts:
        return f"it has no {kind}s"
    near = difflib.get_close_matches(name.partition("#")[0], counts, n=_NAMES_LISTED)
    ordered = list(dict.fromkeys([*near, *counts]))
    shown = [f"{text} ({counts[text]:,})" if counts[text] > 1 else text for text in ordered[:_NAMES_LISTED]]
    more = len(ordered) - len(shown)
    return f"it has {', '.join(shown)}" + (f" and {more:,} more" if more else "")
