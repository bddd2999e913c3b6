"""Positions in a trace: steps, marks and regions, and their names. `Trace.live` has the syntax.

Also valid: "region:NAME#3:end", the end of the third region of that name. Internally, a position is the number of the
first event after it: `RecordedTrace.first_event_after`.
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
_MAX_NAMES_LISTED = 10
_UNIT_NS = {"ms": 1e6, "s": 1e9, "min": 60e9}

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Range:
    """Consecutive events: after position `since`, up to and including position `until`."""

    first: int
    end: int
    """First event after the range."""

    @property
    def since(self) -> int:
        return self.first - 1

    @property
    def until(self) -> int:
        return self.end - 1

    def has(self, events: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return (events >= self.first) & (events < self.end)


def time_of(position: Position, begin_ns: int) -> int | None:
    """Return the time (ns since 1970) of a position given as a time, else None. A naive datetime is local time."""
    if isinstance(position, datetime.datetime):
        # A pandas.Timestamp has nanoseconds, and no `astimezone` without a zone.
        nanoseconds = int(getattr(position, "nanosecond", 0))
        to_datetime: Any = getattr(position, "to_pydatetime", None)
        instant: datetime.datetime = position if to_datetime is None else to_datetime(warn=False)
        since_1970 = instant.astimezone(datetime.timezone.utc) - _EPOCH
        return (since_1970 // datetime.timedelta(microseconds=1)) * 1000 + nanoseconds
    duration = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]*)?)(ms|s|min)", position) if isinstance(position, str) else None
    return None if duration is None else min(begin_ns + round(float(duration[1]) * _UNIT_NS[duration[2]]), _LARGEST)


@dataclass(frozen=True)
class Region:
    """A region marked by the program: the events after `begin_seq`, up to and including `end_seq`."""

    name: str
    number: int
    """Number from 1 among the regions of the same name."""
    begin_seq: int
    begin_ns: int
    end_seq: int | None
    """None if the trace ends within the region."""
    end_ns: int | None


PositionEvent: TypeAlias = tuple[int, int, int, int, bool, int]
"""Kind, event, time, value, whether the program ended the step explicitly, number of earlier steps of the same kind."""
LiveBytes: TypeAlias = Callable[[Sequence[int]], npt.NDArray[np.int64]]
"""Function from device indices to the sum of their live bytes at each position event."""


class PositionTable:
    """Steps, marks and regions of a trace, in order.

    rows: (kind, seq, time_ns, number or name). ordinals: by step, the number of steps before it, some of which the
    compacted part of a trace lacks; default: all are there. live_bytes: at each step; default: unknown.
    steps_are_inferred: the steps are those of an optimizer.
    """

    def __init__(
        self,
        rows: Sequence[tuple[int, int, int, Any]],
        ordinals: Sequence[int] | None = None,
        live_bytes: LiveBytes | None = None,
        steps_are_inferred: bool = False,
    ) -> None:
        self.steps_are_inferred = steps_are_inferred
        steps = [row for row in rows if row[0] == STEP]
        self._marks = [row for row in rows if row[0] != STEP]
        # A corrupt trace may contain numbers that overflow 64-bit arithmetic.
        step_rows = [(seq, time_ns, number) for _, seq, time_ns, number in steps]
        self._ends, self._times, self._numbers = (
            np.array([min(row[column], _LARGEST) for row in step_rows], dtype=np.int64) for column in range(3)
        )
        self._live_bytes = live_bytes
        self.ordinals = np.array(range(len(steps)) if ordinals is None else ordinals, dtype=np.int64)

    @classmethod
    def of_events(
        cls, events: Sequence[PositionEvent], read_string: Callable[[int], str], live_bytes: LiveBytes | None = None
    ) -> PositionTable:
        """Return the table of these events, without steps inferred before the first explicit step.

        A program that ends its steps itself, for instance after each epoch, has no other steps.
        """
        first_explicit = next((seq for kind, seq, _, _, is_explicit, _ in events if kind == STEP and is_explicit), -1)
        rows = [row for row in events if row[0] != STEP or row[4] or row[1] > first_explicit]
        steps = [index for index, row in enumerate(events) if row[0] == STEP and (row[4] or row[1] > first_explicit)]
        ordinals: list[int] = []
        previous_step: PositionEvent | None = None
        for row in rows:
            if row[0] == STEP:
                # Ordinals of a corrupt trace may be any number: keep them ascending.
                gap = row[5] - previous_step[5] if previous_step is not None and previous_step[4] == row[4] else 1
                ordinals.append(ordinals[-1] + min(max(gap, 1), _LARGEST >> 20) if ordinals else 0)
                previous_step = row
        return cls(
            [
                (kind, seq, time_ns, value if kind == STEP else read_string(value))
                for kind, seq, time_ns, value, _, _ in rows
            ],
            ordinals,
            None if live_bytes is None else lambda devices: live_bytes(devices)[steps],
            steps_are_inferred=first_explicit < 0,
        )

    def step_of(
        self, seq: npt.NDArray[np.integer[Any]], unknown: npt.NDArray[np.bool_] | None = None
    ) -> np.ma.MaskedArray[Any, Any]:
        """Return the step of each event, masked without steps and where `unknown`. A step's end is its last event."""
        if not len(self._ends):
            return np.ma.array(np.zeros(len(seq), np.int64), mask=np.ones(len(seq), np.bool_))
        numbers = np.append(self._numbers, self._numbers[-1] + 1)
        steps = numbers[np.searchsorted(self._ends, seq, side="left")].astype(np.int64)
        return np.ma.array(steps, mask=np.zeros(len(seq), np.bool_) if unknown is None else unknown)

    @property
    def highest_step(self) -> int:
        """Maximum that `step_of` returns; 0 in a trace without steps."""
        return int(self._numbers.max(initial=0)) + bool(len(self._numbers))

    @property
    def step_count(self) -> int:
        """Number of steps, including those missing in a compacted trace."""
        return int(self.ordinals[-1]) + 1 if len(self.ordinals) else 0

    def whole_steps(self, within: Range) -> npt.NDArray[np.bool_]:
        """Return a mask of the steps that lie completely within a range."""
        begins = np.append(0, self._ends + 1)[:-1]
        return (begins >= within.first) & (self._ends < within.end)

    def step_at(self, seq: int) -> int | None:
        step = self.step_of(np.array([seq], dtype=np.int64))[0]
        return None if step is np.ma.masked else int(step)

    @property
    def step_ends(self) -> npt.NDArray[np.int64]:
        return self._ends

    def steps(self, devices: Sequence[int]) -> Table:
        """Return the steps that ended: step, seq, time_ns, live_bytes. devices: indices."""
        return Table(
            {
                "step": self._numbers,
                "seq": self._ends,
                "time_ns": self._times,
                "live_bytes": np.zeros(len(self._ends), np.int64)
                if self._live_bytes is None
                else self._live_bytes(devices),
            }
        )

    @property
    def marks(self) -> Sequence[tuple[int, int, int, str]]:
        """Marks, begins and ends of regions, in order: kind (a number), event, time, name."""
        return self._marks

    def first_event_after(self, position: str) -> int | None:
        """Return the first event after "step:N", "mark:NAME" or "region:NAME"; None: the end. Raises PositionError."""
        kind, _, name = position.partition(":")
        if kind == "step":
            index = self._step_index(name)
            return int(self._ends[index]) + 1 if index < len(self._ends) else None
        if kind == "mark":
            return self._find_mark(name) + 1
        if kind == "region":
            is_end = name.endswith(":end") and not any(region.name == name for region in self.regions)
            region = self.regions_named(name.removesuffix(":end") if is_end else name)[0]
            seq = region.end_seq if is_end else region.begin_seq
            return None if seq is None else seq + 1
        raise PositionError(
            f"{position!r} is not a valid position: use end, peak, peak:reserved, an event number, step:N, mark:NAME, "
            "region:NAME, region:NAME:end or a time such as 12.5s, 100ms or 2min"
        )

    @functools.cached_property
    def regions(self) -> tuple[Region, ...]:
        """All regions, ordered by begin. An end belongs to the last open region of its name."""
        regions: list[Region] = []
        open_regions: dict[str, list[int]] = {}
        counts: Counter[str] = Counter()
        for kind, seq, time_ns, name in self._marks:
            if kind == REGION_BEGIN:
                counts[name] += 1
                open_regions.setdefault(name, []).append(len(regions))
                regions.append(Region(name, counts[name], seq, time_ns, None, None))
            elif kind == REGION_END and open_regions.get(name):
                index = open_regions[name].pop()
                regions[index] = replace(regions[index], end_seq=seq, end_ns=time_ns)
        return tuple(regions)

    def regions_named(self, name: str) -> list[Region]:
        """Return the regions of a name: "NAME#3" the third, "NAME#-1" the last. Raises PositionError if none."""
        return _select_named("region", name, [(region.name, region) for region in self.regions])

    def stretches_named(self, name: str) -> list[Region]:
        """Return the outermost of `regions_named`, so that events in nested regions count once."""
        # Of two overlapping regions of one name, one always lies in the other.
        outermost: list[Region] = []
        for region in self.regions_named(name):
            outer = outermost[-1] if outermost else None
            if outer is None or (outer.end_seq is not None and outer.end_seq < region.begin_seq):
                outermost.append(region)
        return outermost

    def _step_index(self, name: str) -> int:
        # After the last step that ended, another step lasts to the end of the trace.
        numbers = np.append(self._numbers, self._numbers[-1:] + 1)
        if not re.fullmatch(r"-?[0-9]{1,18}", name):
            raise PositionError(f"'step:{name}' is not a valid position: use step:N with the number of a step")
        matches = np.flatnonzero(numbers == int(name))
        if not len(matches):
            steps = f"it has steps {numbers.min()} to {numbers.max()}" if len(self._numbers) else "it has no steps"
            raise PositionError(f"the trace has no step {name}: {steps}")
        return int(matches[0])

    def _find_mark(self, name: str) -> int:
        marks = [(text, seq) for kind, seq, _, text in self._marks if kind == MARK]
        begins = [(region.name, region.begin_seq) for region in self.regions]
        mark_names = {text for text, _ in marks}
        is_region = (
            name not in mark_names
            and name.rpartition("#")[0] not in mark_names
            and any(name == text for text, _ in begins)
        )
        return _select_named("mark", name, begins if is_region else marks)[0]


def _select_named(kind: str, name: str, items: Sequence[tuple[str, _Item]]) -> list[_Item]:
    """Return the items of a name, or the third for "NAME#3". A name may itself contain "#"."""
    matches = [item for text, item in items if text == name]
    if matches:
        return matches
    base, _, number = name.rpartition("#")
    matches = [item for text, item in items if text == base]
    if not matches or not re.fullmatch(r"-?[0-9]{1,9}", number):
        raise PositionError(
            f"the trace has no {kind} named {name!r}: {_list_names(kind, name, [text for text, _ in items])}"
        )
    index = int(number) - 1 if int(number) > 0 else len(matches) + int(number)
    if int(number) == 0 or not 0 <= index < len(matches):
        raise PositionError(f"the trace has no {kind} {name!r}: it has {base}#1 to {base}#{len(matches)}")
    return [matches[index]]


def _list_names(kind: str, name: str, names: Sequence[str]) -> str:
    """Describe the existing names, those similar to `name` first."""
    counts = Counter(names)
    if not counts:
        return f"it has no {kind}s"
    similar = difflib.get_close_matches(name.partition("#")[0], counts, n=_MAX_NAMES_LISTED)
    ordered = list(dict.fromkeys([*similar, *counts]))
    listed = [f"{text} ({counts[text]:,})" if counts[text] > 1 else text for text in ordered[:_MAX_NAMES_LISTED]]
    more = len(ordered) - len(listed)
    return f"it has {', '.join(listed)}" + (f" and {more:,} more" if more else "")
