"""Positions in a trace: steps, marks and regions, and how a user names a position.

A position is "end", "peak" (of allocated bytes), "peak:reserved", an event number (after that event), "step:N" (the end
of step N), "mark:NAME" (the first mark of that name), "12.5s" (that long after the recording began) or a datetime.
Inside, a position is the number of the first event after it: `RecordedTrace.first_event_after`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import PositionError
from .dtypes import no_rows
from .kinds import MARK, STEP, kind_name

Position = int | str | datetime.datetime
PEAKS = ("peak", "peak:reserved")

_LARGEST = (1 << 63) - 2


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
        stamp = pd.Timestamp(position)
        return (stamp if stamp.tzinfo is not None else pd.Timestamp(stamp.to_pydatetime().astimezone())).value
    seconds = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]*)?)s", position) if isinstance(position, str) else None
    return None if seconds is None else min(begin_ns + round(float(seconds[1]) * 1e9), _LARGEST)


class PositionTable:
    """The steps, marks and regions of a trace, in order. Rows: (kind, seq, time_ns, number or name, live bytes by
    device)."""

    def __init__(self, rows: Sequence[tuple[int, int, int, Any, list[int]]]) -> None:
        # A damaged trace may hold any number; none may overflow 64-bit arithmetic.
        self._steps = [
            (kind, min(seq, _LARGEST), time, min(number, _LARGEST), live)
            for kind, seq, time, number, live in rows
            if kind == STEP
        ]
        self._marks = [row for row in rows if row[0] != STEP]
        self._ends = np.array([row[1] for row in self._steps], dtype=np.int64)
        self._numbers = np.array([row[3] for row in self._steps], dtype=np.int64)

    def step_of(self, seq: npt.NDArray[np.integer[Any]], unknown: npt.NDArray[np.bool_] | None = None) -> Any:
        """The step that each event belongs to; the event that ends a step is its last. <NA> in a trace without steps,
        and where `unknown` is True."""
        if not len(self._ends):
            return pd.arrays.IntegerArray(np.zeros(len(seq), np.int64), np.ones(len(seq), np.bool_))
        numbers = np.append(self._numbers, self._numbers[-1] + 1)
        steps = numbers[np.searchsorted(self._ends, seq, side="left")].astype(np.int64)
        return pd.arrays.IntegerArray(steps, np.zeros(len(seq), np.bool_) if unknown is None else unknown)

    def whole_steps(self, within: Range) -> npt.NDArray[np.bool_]:
        """Which steps lie wholly within a range, from their first event to their last."""
        begins = np.append(0, self._ends + 1)[:-1]
        return (begins >= within.first) & (self._ends < within.end)

    def step_at(self, seq: int) -> int | None:
        """The step that an event belongs to; None in a trace without steps."""
        step = self.step_of(np.array([seq], dtype=np.int64))[0]
        return None if pd.isna(step) else int(step)

    def steps(self, devices: Sequence[int]) -> pd.DataFrame:
        """See `Trace.steps`. devices: by index."""
        rows = [
            {
                "step": number,
                "seq": seq,
                "time_ns": time_ns,
                "live_bytes": sum(live[index] for index in devices if index < len(live)),
            }
            for _, seq, time_ns, number, live in self._steps
        ]
        return pd.DataFrame(rows) if rows else no_rows(("step", "seq", "time_ns", "live_bytes"))

    def marks(self) -> pd.DataFrame:
        """See `Trace.marks`."""
        rows = [
            {"name": name, "kind": kind_name(kind), "seq": seq, "time_ns": time_ns}
            for kind, seq, time_ns, name, _ in self._marks
        ]
        return pd.DataFrame(rows) if rows else no_rows(("name", "kind", "seq", "time_ns"))

    def first_event_after(self, position: str) -> int | None:
        """For "step:N" and "mark:NAME"; None: the end of the trace. Raises PositionError."""
        kind, _, name = position.partition(":")
        if kind == "step":
            index = self._step_index(name)
            return int(self._ends[index]) + 1 if index < len(self._ends) else None
        if kind == "mark":
            return self._mark(name) + 1
        raise PositionError(
            f"{position!r} is not a valid position: "
            "use end, peak, peak:reserved, an event number, step:N, mark:NAME or a time such as 12.5s"
        )

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
        for kind, seq, _, text, _ in self._marks:
            if text == name and kind >= MARK:
                return seq
        raise PositionError(f"the trace has no mark named {name!r}")
