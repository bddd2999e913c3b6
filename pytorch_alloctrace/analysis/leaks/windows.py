"""Windows: equal parts of the run in which growing buffers are compared.

A window consists of units: steps, iterations or, without either, small equal parts of the allocations. The warm-up
belongs to no window: buffers get their first contents there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from .clock import Clock

WARMUP_SHARE = 0.2
"""Share of the units in the warm-up (at least one unit)."""
MAX_WINDOWS = 24
MAX_PAUSE_RATIO = 2
"""Maximum ratio of the time since the last growth to the longest pause; beyond it growth has stopped."""
_UNITS_WITHOUT_STEPS = 300


@dataclass(frozen=True)
class Windows:
    """Division of a run into units: steps, iterations or small parts of the run."""

    unit: str
    units: int
    """Number of units after the warm-up; may be 0."""
    warmup: int
    begin: int
    """Event after which the judged part begins."""
    judged_at: int
    seconds: float
    ends: npt.NDArray[np.int64]
    """Last event of each unit after the warm-up."""
    all_ends: npt.NDArray[np.int64]
    """Last event of each unit, warm-up included."""
    units_before: int = 0
    """Number of units in the compacted part of the run."""
    stride: float = 1.0
    """Number of steps or iterations in a unit: of a long loop, only each second, fourth, ... iteration is recorded."""

    @classmethod
    def divide(cls, trace: RecordedTrace, clock: Clock) -> Windows:
        ends = clock.ends
        if not clock.is_discrete:
            ends = np.interp(np.linspace(0, clock.length, _UNITS_WITHOUT_STEPS + 1)[1:], clock.counts, clock.ends)
        events = np.unique(ends.astype(np.int64))
        warmup = max(1, int(np.ceil(WARMUP_SHARE * len(events))))
        units = max(len(events) - warmup, 0)
        begin = int(events[min(warmup, len(events)) - 1])
        stride = clock.length / (len(events) - 1) if clock.is_discrete and len(events) > 1 else 1.0
        seconds = trace.replay.time_before(clock.judged_at + 1) - trace.replay.time_before(begin + 1)
        return cls(
            unit=clock.unit,
            units=units,
            warmup=warmup,
            begin=begin,
            judged_at=clock.judged_at,
            seconds=max(seconds, 0) / 1e9,
            ends=events[warmup:],
            all_ends=events,
            units_before=round(
                clock.units_before if clock.is_discrete else clock.units_before * len(events) / max(clock.length, 1e-9)
            ),
            stride=stride,
        )

    @property
    def window_counts(self) -> list[int]:
        """The numbers of windows to divide into, finest first. Coarse windows find growth in every tenth step."""
        coarser = [count for count in (MAX_WINDOWS // 2, MAX_WINDOWS // 4) if self.units >= 2 * count]
        return [min(MAX_WINDOWS, self.units), *coarser]

    def units_of(self, events: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the unit of each event; negative in the warm-up."""
        # By order, not by step number: a program may restart its count. The event that ends a step belongs to the step.
        ordinals = np.searchsorted(self.all_ends, events, side="left")
        return np.minimum(ordinals, len(self.all_ends) - 1) - (len(self.all_ends) - self.units)

    def window_of(self, units: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Return the window of each unit, of `count` consecutive windows of equal length to within one unit."""
        return units * count // self.units

    def count_units(self, count: int) -> npt.NDArray[np.int64]:
        return np.bincount(self.window_of(np.arange(self.units), count), minlength=count)

    def has_stopped(self, units: npt.NDArray[np.int64]) -> bool:
        """Return whether growth in the given units had stopped long before the run ended."""
        growth_units = np.unique(units) + 1
        return int(self.units - growth_units[-1]) > MAX_PAUSE_RATIO * int(np.diff(growth_units).max(initial=1))

    @property
    def unit_length(self) -> float:
        """The length of a unit in the unit of rates: steps or iterations, or its seconds."""
        return self.seconds / max(self.units, 1) if self.unit == "second" else self.stride

    @property
    def seconds_per_unit(self) -> float:
        """The average seconds of a step or iteration after the warm-up; 1 if rates are per second."""
        return 1.0 if self.unit == "second" or not self.units else self.seconds / (self.units * self.stride)


def find_warmup_end(trace: RecordedTrace, clock: Clock) -> int:
    # The live blocks in a compacted part of the trace are unknown.
    return max(
        int(np.interp(compute_warmup_length(clock), clock.counts, clock.ends)), trace.integrity.compacted_until - 1
    )


def compute_warmup_length(clock: Clock) -> float:
    """Return the length of the warm-up, in units of the clock."""
    # A discrete warm-up ends with a step.
    steps = float(max(np.ceil(WARMUP_SHARE * (clock.length + 1)), 1))
    return steps - 1 if clock.is_discrete else WARMUP_SHARE * clock.length
