"""Windows: when in the run a block was born, by steps or, if the trace has none, by time.

The first part of the run, the warm-up, belongs to no window: parameters, gradients and the optimizer's state are born
there once and stay. The last window is never judged: what was just allocated may be in use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...errors import PositionError
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace

WARMUP_SHARE = 0.2
"""Share of the run, in steps (at least one) or in time."""
WINDOWS = 24
"""Most windows that a run is divided into."""
LEAST_WINDOWS = 4
"""Fewer prove nothing: three births in a row are not yet a habit."""
OVER = 2
"""Births are over if none came for longer than this many times the longest time between two of them."""
_TIMELINE_POINTS = 30
"""Intervals of a run without steps: 6 of warm-up (a fifth) and 24 windows, from one pass over the trace."""


@dataclass(frozen=True)
class Windows:
    """How a run is divided. Units are steps or, if `unit` is "second", the finest windows of time."""

    unit: str
    """"step" or "second": rates are given per step or per second."""
    units: int
    """Units after the warm-up; 0 if there are none."""
    warmup: float
    """Length of the warm-up: steps or seconds."""
    warmup_end: int
    """The event that ends the warm-up."""
    begin: int
    """The event after which the judged part begins. By time this is not `warmup_end`, the event with the most live
    bytes of an interval: something is half done then."""
    judged_at: int
    """The event after which the live blocks are judged: the end of the last step; without steps, the last event.

    With steps it is not the end of the trace: a function that returns frees its locals, so that a leak into a local
    list would be gone at the end of every program that has a main().
    """
    judged_ns: int
    seconds: float
    """Duration of all units together."""
    ends: npt.NDArray[np.int64]
    """The event that ends each unit; of a window of time, one event within it."""
    births: npt.NDArray[np.int64]
    """What a birth is compared with: the last event of each step, warm-up included, or each unit's beginning in ns."""
    active: npt.NDArray[np.bool_]
    """For each unit whether it counts. A step always does; a window of time if something happened in it and live memory
    did not only rise."""

    @classmethod
    def of(cls, trace: RecordedTrace, device: str, within: Range | None = None) -> Windows:
        """By steps if the trace has any, else by time.

        within: only the steps that lie wholly in this range; everything before them is the warm-up. Raises
        PositionError if there are none.
        """
        steps = trace.steps(device=device)
        if within is not None:
            inside = trace.positions.whole_steps(within)
            if not inside.any():
                reason = "no whole step lies in it" if len(steps) else "the trace has none"
                raise PositionError(f"leaks of a range are judged by steps, and {reason}: judge the whole run instead")
            first, last = np.flatnonzero(inside)[[0, -1]]
            return cls._of_steps(steps[: last + 1], int(first))
        return cls._of_steps(steps, 0) if len(steps) else cls._of_time(trace, device)

    @classmethod
    def _of_steps(cls, steps: pd.DataFrame, before: int) -> Windows:
        """before: this many of the first steps are the warm-up; 0: the usual share of them."""
        ends = steps["seq"].to_numpy(np.int64)
        times = steps["time_ns"].to_numpy(np.int64)
        warmup = before or max(1, int(np.ceil(WARMUP_SHARE * len(ends))))
        units = max(len(ends) - warmup, 0)
        return cls(
            unit="step",
            units=units,
            warmup=warmup,
            warmup_end=int(ends[min(warmup, len(ends)) - 1]),
            begin=int(ends[min(warmup, len(ends)) - 1]),
            judged_at=int(ends[-1]),
            judged_ns=int(times[-1]),
            seconds=float(times[-1] - times[warmup - 1]) / 1e9 if units else 0.0,
            ends=ends[warmup:],
            births=ends,
            active=np.ones(units, dtype=bool),
        )

    @classmethod
    def _of_time(cls, trace: RecordedTrace, device: str) -> Windows:
        timeline = trace.timeline(_TIMELINE_POINTS, device=device)
        warmup = _TIMELINE_POINTS - WINDOWS
        begins = timeline["time_ns"].to_numpy(np.int64)
        ends = timeline["seq"].to_numpy(np.int64)
        only_rose = _only_rose(timeline)
        if len(begins) < _TIMELINE_POINTS:  # the device has no events
            begins, ends = np.zeros(_TIMELINE_POINTS, np.int64), np.zeros(_TIMELINE_POINTS, np.int64)
            only_rose = np.ones(_TIMELINE_POINTS, np.bool_)
        # An interval without events has no number or repeats the one before it; any event in it has a higher one.
        happened = np.append(True, ends[1:] > np.maximum.accumulate(ends)[:-1])
        ends = np.maximum.accumulate(ends)
        return cls(
            unit="second",
            units=WINDOWS,
            warmup=float(begins[warmup] - begins[0]) / 1e9,
            warmup_end=int(ends[warmup - 1]),
            begin=trace.first_event_after_time(int(begins[warmup])) - 1,
            judged_at=trace.end_seq - 1,
            judged_ns=trace.end_ns,
            seconds=max(float(trace.end_ns - begins[warmup]) / 1e9, 0.0),
            ends=ends[warmup:],
            births=begins[warmup:],
            active=(happened & ~only_rose)[warmup:],
        )

    @property
    def too_short(self) -> bool:
        """Whether there are too few windows for a judgement."""
        return int(self.active.sum()) < LEAST_WINDOWS

    @property
    def counts(self) -> list[int]:
        """The numbers of windows to divide into, finest first. Coarser ones find what leaks only every tenth step."""
        coarser = [count for count in (WINDOWS // 2, WINDOWS // 4) if self.units >= 2 * count]
        return [min(WINDOWS, self.units), *coarser]

    def units_of(self, blocks: pd.DataFrame) -> npt.NDArray[np.int64]:
        """The unit in which each block of `Trace.live` was born; negative in the warm-up."""
        if self.unit == "step":
            # The event that ends a step belongs to it. By order, since a program may count from 0 in each epoch.
            ordinal = np.searchsorted(self.births, blocks["birth_seq"].to_numpy(np.int64), side="left")
            return np.minimum(ordinal, len(self.births) - 1) - (len(self.births) - self.units)
        return np.searchsorted(self.births, blocks["birth_ns"].to_numpy(np.int64), side="right") - 1

    def window_of(self, units: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """The window of each unit if there are `count` windows: consecutive, equally long to within one unit."""
        return units * count // self.units

    def units_in(self, count: int) -> npt.NDArray[np.int64]:
        """How many units each of `count` windows has."""
        return np.bincount(self.window_of(np.arange(self.units), count), minlength=count)

    def active_in(self, count: int) -> npt.NDArray[np.bool_]:
        """For each of `count` windows whether it has an active unit."""
        return np.bincount(self.window_of(np.arange(self.units), count), weights=self.active, minlength=count) > 0

    def is_over(self, units: npt.NDArray[np.int64], end: int) -> bool:
        """Whether what happened in some units was over before unit `end`: more than `OVER` times the longest time
        between two of them had passed since the last."""
        # In active units, as all steps are: a server that sleeps has not stopped leaking.
        active = np.append(0, np.cumsum(self.active))
        happened = active[np.unique(units) + 1]
        return int(active[end] - happened[-1]) > OVER * int(np.diff(happened).max(initial=1))

    def first_unit_of_youngest(self, count: int) -> int:
        """Where the youngest of `count` windows begins."""
        return int(self.units - self.units_in(count)[-1])

    @property
    def length_of_unit(self) -> float:
        """In steps (1) or in seconds, which rates are given in."""
        return 1.0 if self.unit == "step" else self.seconds / max(self.units, 1)

    @property
    def seconds_per_unit(self) -> float:
        """How long a step took after the warm-up; 1 if rates are given per second."""
        return self.seconds / self.units if self.unit == "step" and self.units else 1.0


def _only_rose(timeline: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """For each interval of a timeline whether live memory was never below its beginning nor above its end in it."""
    lowest, highest, level = (timeline[f"requested{name}"].to_numpy(np.int64) for name in ("_min", "_max", ""))
    return (lowest >= np.append(0, level)[:-1]) & (highest <= level)
