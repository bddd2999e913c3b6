"""Windows: equal parts of the run in which growing buffers are looked at.

They are made of the steps or iterations of a clock or, where there are none, of small equal parts of its allocations.
The first part of the run, the warm-up, belongs to no window: buffers get their first contents there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from .clock import Clock

WARMUP_SHARE = 0.2
"""Share of the run, in units (at least one)."""
WINDOWS = 24
"""Most windows that a run is divided into."""
OVER = 2
"""Growth is over if none came for longer than this many times the longest time between two of them."""
_UNITS = 300
"""Parts of a run that has no steps."""


@dataclass(frozen=True)
class Windows:
    """How a run is divided. Units are steps, iterations or small parts of the run."""

    unit: str
    """"step", "iteration" or "second": rates are given per step, iteration or second."""
    units: int
    """Units after the warm-up; 0 if there are none."""
    warmup: int
    """Units of the warm-up."""
    begin: int
    """The event after which the judged part begins."""
    judged_at: int
    """The event after which the live blocks are judged: see `Clock`."""
    seconds: float
    """Duration of all units together."""
    ends: npt.NDArray[np.int64]
    """The event that ends each unit."""
    births: npt.NDArray[np.int64]
    """The same, warm-up included."""
    before: int = 0
    """Units that came before all these, in a part of the run that is compacted."""

    @classmethod
    def of(cls, trace: RecordedTrace, clock: Clock) -> Windows:
        """Of the part of the run that a clock counts."""
        ends = clock.ends
        if not clock.whole:
            ends = np.interp(np.linspace(0, clock.length, _UNITS + 1)[1:], clock.counts, clock.ends)
        events = np.unique(ends.astype(np.int64))
        warmup = max(1, int(np.ceil(WARMUP_SHARE * len(events))))
        units = max(len(events) - warmup, 0)
        begin = int(events[min(warmup, len(events)) - 1])
        seconds = trace.replay.time_before(clock.judged_at + 1) - trace.replay.time_before(begin + 1)
        return cls(
            unit=clock.unit,
            units=units,
            warmup=warmup,
            begin=begin,
            judged_at=clock.judged_at,
            seconds=max(seconds, 0) / 1e9,
            ends=events[warmup:],
            births=events,
            before=round(clock.before if clock.whole else clock.before * len(events) / max(clock.length, 1e-9)),
        )

    @property
    def counts(self) -> list[int]:
        """The numbers of windows to divide into, finest first. Coarser ones find what grows only every tenth step."""
        coarser = [count for count in (WINDOWS // 2, WINDOWS // 4) if self.units >= 2 * count]
        return [min(WINDOWS, self.units), *coarser]

    def units_of(self, births: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the unit in which each block was born; negative in the warm-up. births: the events."""
        # The event that ends a step belongs to it. By order, since a program may count from 0 in each epoch.
        ordinal = np.searchsorted(self.births, births, side="left")
        return np.minimum(ordinal, len(self.births) - 1) - (len(self.births) - self.units)

    def window_of(self, units: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """The window of each unit if there are `count` windows: consecutive, equally long to within one unit."""
        return units * count // self.units

    def units_in(self, count: int) -> npt.NDArray[np.int64]:
        """How many units each of `count` windows has."""
        return np.bincount(self.window_of(np.arange(self.units), count), minlength=count)

    def is_over(self, units: npt.NDArray[np.int64]) -> bool:
        """Whether what happened in some units is over: more than `OVER` times the longest time between two of them had
        passed since the last when the run ended."""
        happened = np.unique(units) + 1
        return int(self.units - happened[-1]) > OVER * int(np.diff(happened).max(initial=1))

    @property
    def length_of_unit(self) -> float:
        """In steps (1) or in seconds, which rates are given in."""
        return self.seconds / max(self.units, 1) if self.unit == "second" else 1.0

    @property
    def seconds_per_unit(self) -> float:
        """How long a step took after the warm-up; 1 if rates are given per second."""
        return 1.0 if self.unit == "second" or not self.units else self.seconds / self.units


def warmup_end(trace: RecordedTrace, clock: Clock) -> int:
    """Return the event with which the warm-up ends."""
    # What was live then is not known where the trace is compacted further.
    return max(int(np.interp(warmup_length(clock), clock.counts, clock.ends)), trace.integrity.compacted_until - 1)


def warmup_length(clock: Clock) -> float:
    """Return the length of the warm-up, in units of the clock."""
    # Where there are steps, at the end of one.
    steps = float(max(np.ceil(WARMUP_SHARE * (clock.length + 1)), 1))
    return steps - 1 if clock.whole else WARMUP_SHARE * clock.length
