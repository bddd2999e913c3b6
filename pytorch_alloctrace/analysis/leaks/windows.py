"""Windows of birth: when in the run a block was made, in steps or, where the trace has none, in time.

The first part of the run, the warm-up, belongs to no window: parameters, gradients and the optimizer's state are born
there once and stay. The last window is never judged: what was just made may be in use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...errors import PositionError
from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace

WARMUP_SHARE = 0.2
"""Of the run, in steps (at least one) or in time."""
WINDOWS = 24
"""Most windows that a run is divided into."""
LEAST_WINDOWS = 4
"""Fewer say nothing: three births in a row are not yet a habit."""
OVER = 2
"""So many times the longest time between two births: if nothing was born for longer than that, it is over."""
_TIMELINE_POINTS = 30
"""Intervals of a run without steps: 6 of warm-up (a fifth) and 24 windows, from one pass over the trace."""


@dataclass(frozen=True)
class Windows:
    """How a run is divided. Units are steps, or (`unit` "second") the finest windows of time."""

    unit: str
    """"step" or "second": what a rate is told by."""
    units: int
    """Units after the warm-up; 0 where there are none."""
    warmup: float
    """Length of the warm-up: steps or seconds."""
    warmup_end: int
    """The event that ends the warm-up."""
    judged_at: int | str
    """The moment whose live blocks are judged: the end of the last step, else the end of the trace.

    Not the end of the trace where there are steps: a function that returns takes its locals with it, and a leak into a
    local list would be gone at the end of every program that has a main().
    """
    judged_ns: int
    seconds: float
    """Duration of all units together."""
    moments: npt.NDArray[np.int64]
    """The event that ends each unit; of a window of time, one event within it."""
    births: npt.NDArray[np.int64]
    """What a birth is compared with: the last event of each step, warm-up included, or each unit's beginning in ns."""
    active: npt.NDArray[np.bool_]
    """Per unit: whether it counts. A step always does; of a window of time see the module."""

    @classmethod
    def of(cls, trace: RecordedTrace, device: str, within: Range | None = None) -> Windows:
        """By steps where the trace has any, else by time. within: of these events alone, by steps; what lies before it
        is the warm-up. Raises PositionError where that cannot be."""
        steps = trace.steps(device=device)
        if within is not None:
            inside = within.has(steps["seq"].to_numpy(np.int64))
            if not inside.any():
                told = "no step ends in it" if len(steps) else "the trace has none"
                raise PositionError(f"leaks of a stretch are judged by steps, and {told}: judge the whole run instead")
            first, last = np.flatnonzero(inside)[[0, -1]]
            return cls._of_steps(steps[: last + 1], int(first))
        return cls._of_steps(steps, 0) if len(steps) else cls._of_time(trace, device)

    @classmethod
    def _of_steps(cls, steps: pd.DataFrame, before: int) -> Windows:
        """before: so many of the first steps are warm-up in any case, and all of it where there are any."""
        ends = steps["seq"].to_numpy(np.int64)
        times = steps["time_ns"].to_numpy(np.int64)
        warmup = before or max(1, int(np.ceil(WARMUP_SHARE * len(ends))))
        units = max(len(ends) - warmup, 0)
        return cls(
            unit="step",
            units=units,
            warmup=warmup,
            warmup_end=int(ends[min(warmup, len(ends)) - 1]),
            judged_at=int(ends[-1]),
            judged_ns=int(times[-1]),
            seconds=float(times[-1] - times[warmup - 1]) / 1e9 if units else 0.0,
            moments=ends[warmup:],
            births=ends,
            active=np.ones(units, dtype=bool),
        )

    @classmethod
    def _of_time(cls, trace: RecordedTrace, device: str) -> Windows:
        timeline = trace.timeline(_TIMELINE_POINTS, device=device)
        warmup = _TIMELINE_POINTS - WINDOWS
        begins = timeline["time_ns"].to_numpy(np.int64)
        moments = timeline["seq"].to_numpy(np.int64)
        only_rose = _only_rose(timeline)
        if len(begins) < _TIMELINE_POINTS:  # the device has no events
            begins, moments = np.zeros(_TIMELINE_POINTS, np.int64), np.zeros(_TIMELINE_POINTS, np.int64)
            only_rose = np.ones(_TIMELINE_POINTS, np.bool_)
        # An interval without events has none, or repeats the one before it; an event of its own has a higher number.
        happened = np.append(True, moments[1:] > np.maximum.accumulate(moments)[:-1])
        moments = np.maximum.accumulate(moments)
        return cls(
            unit="second",
            units=WINDOWS,
            warmup=float(begins[warmup] - begins[0]) / 1e9,
            warmup_end=int(moments[warmup - 1]),
            judged_at="end",
            judged_ns=trace.end_ns,
            seconds=max(float(trace.end_ns - begins[warmup]) / 1e9, 0.0),
            moments=moments[warmup:],
            births=begins[warmup:],
            active=(happened & ~only_rose)[warmup:],
        )

    def beginning(self, begin_ns: int) -> Position:
        """The end of the warm-up, as a moment of a trace that began at `begin_ns`."""
        # By time `warmup_end` is the event with the most live bytes of an interval: something is half done then.
        return self.warmup_end if self.unit == "step" else f"{(int(self.births[0]) - begin_ns) / 1e9:.9f}s"

    @property
    def too_short(self) -> bool:
        """Whether there are too few windows for a judgement."""
        return int(self.active.sum()) < LEAST_WINDOWS

    @property
    def counts(self) -> list[int]:
        """In how many windows to divide, finest first. Coarser ones find what leaks only every tenth step."""
        coarser = [count for count in (WINDOWS // 2, WINDOWS // 4) if self.units >= 2 * count]
        return [min(WINDOWS, self.units), *coarser]

    def units_of(self, blocks: pd.DataFrame) -> npt.NDArray[np.int64]:
        """The unit that each block of `Trace.live` was born in; negative for the warm-up."""
        if self.unit == "step":
            # The event that ends a step belongs to it. By order, not number: a program may count from 0 in each epoch.
            ordinal = np.searchsorted(self.births, blocks["birth_seq"].to_numpy(np.int64), side="left")
            return np.minimum(ordinal, len(self.births) - 1) - (len(self.births) - self.units)
        return np.searchsorted(self.births, blocks["birth_ns"].to_numpy(np.int64), side="right") - 1

    def window_of(self, units: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """The window of each unit when there are `count` windows: consecutive, of equal length within one unit."""
        return units * count // self.units

    def units_in(self, count: int) -> npt.NDArray[np.int64]:
        """How many units each of `count` windows has."""
        return np.bincount(self.window_of(np.arange(self.units), count), minlength=count)

    def active_in(self, count: int) -> npt.NDArray[np.bool_]:
        """Of `count` windows, which have at least one active unit."""
        return np.bincount(self.window_of(np.arange(self.units), count), weights=self.active, minlength=count) > 0

    def is_over(self, units: npt.NDArray[np.int64], end: int) -> bool:
        """Whether what happened in some units has come to an end before unit `end`: since the last of them, more than
        `OVER` times the longest time between two of them has passed."""
        # Counted in active units, as all steps are: a server that sleeps has not stopped to leak.
        active = np.append(0, np.cumsum(self.active))
        happened = active[np.unique(units) + 1]
        return int(active[end] - happened[-1]) > OVER * int(np.diff(happened).max(initial=1))

    def first_unit_of_youngest(self, count: int) -> int:
        """Where the youngest of `count` windows begins."""
        return int(self.units - self.units_in(count)[-1])

    @property
    def length_of_unit(self) -> float:
        """Of what rates are told by: 1 step, or so many seconds."""
        return 1.0 if self.unit == "step" else self.seconds / max(self.units, 1)

    @property
    def seconds_per_unit(self) -> float:
        """How long a step took, after the warm-up; 1 where rates are told by the second."""
        return self.seconds / self.units if self.unit == "step" and self.units else 1.0


def _only_rose(timeline: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Of the intervals of a timeline, in which live memory was never below its beginning nor above its end."""
    lowest, highest, level = (timeline[f"requested{name}"].to_numpy(np.int64) for name in ("_min", "_max", ""))
    return (lowest >= np.append(0, level)[:-1]) & (highest <= level)
