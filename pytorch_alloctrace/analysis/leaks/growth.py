"""Growth: live bytes at the end of each step, and lines that hold more at the end than after the warm-up.

Growth is not a verdict: it may be a leak (see `judge`), a cache that fills up, or longer inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, group_stacks
from .windows import WARMUP_SHARE, compute_warmup_length

if TYPE_CHECKING:
    from ..evidence import DeviceEvidence

_MAX_SLOPE_POINTS = 300
"""Maximum number of points for the slope: the median of all pairs of points costs their square."""
_MAX_SAMPLES = 200


@dataclass(frozen=True)
class StepGrowth:
    """Live requested bytes at the end of each step."""

    steps: int
    warmup: int
    """Number of steps left out of the slope."""
    first_bytes: int
    median_bytes: int
    last_bytes: int
    lowest_bytes: int
    highest_bytes: int
    bytes_per_step: float
    """Median of the slopes between any two steps after the warm-up, so that one jump is not growth."""
    seconds_per_step: float
    """Median time from the end of a step to the end of the next; 0 for a single step."""
    seconds_spread: tuple[float, float]
    """Tenth and ninetieth percentile of these times."""
    samples: tuple[int, ...]


@dataclass(frozen=True)
class GrowingSite:
    """A line that holds more at the judged event than after the warm-up."""

    site: Site
    stack_id: int
    before_bytes: int
    after_bytes: int
    bytes_per_unit: float
    """Average bytes per step, iteration or second (see `LeakVerdict.unit`)."""

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


def step_growth(trace: RecordedTrace, device: str) -> StepGrowth | None:
    steps = trace.steps(device)
    if not len(steps):
        return None
    levels, times = steps["live_bytes"], steps["time_ns"]
    warmup = max(1, int(np.ceil(WARMUP_SHARE * len(levels))))
    indices = np.unique(np.linspace(0, len(levels) - 1, min(_MAX_SAMPLES, len(levels))).round().astype(int))
    low, median, high = np.quantile(np.diff(times) / 1e9 if len(times) > 1 else [0.0], (0.1, 0.5, 0.9)).tolist()
    return StepGrowth(
        steps=len(levels),
        warmup=warmup,
        first_bytes=int(levels[0]),
        median_bytes=int(np.median(levels)),
        last_bytes=int(levels[-1]),
        lowest_bytes=int(levels.min()),
        highest_bytes=int(levels.max()),
        bytes_per_step=median_slope(levels[warmup:]),
        seconds_per_step=median,
        seconds_spread=(low, high),
        samples=tuple(int(level) for level in levels[indices]),
    )


def median_slope(levels: npt.NDArray[np.int64]) -> float:
    """Return the median slope between any two evenly spaced values (Theil and Sen); 0 for fewer than two values."""
    if len(levels) < 2:
        return 0.0
    indices = np.unique(np.linspace(0, len(levels) - 1, min(_MAX_SLOPE_POINTS, len(levels))).round().astype(int))
    first, second = np.triu_indices(len(indices), k=1)
    return float(np.median((levels[indices[second]] - levels[indices[first]]) / (indices[second] - indices[first])))


def growing_sites(evidence: DeviceEvidence, top: int) -> tuple[GrowingSite, ...]:
    """Return the `top` lines that grew the most since the warm-up, most bytes first; none if the run is too short."""
    trace, clock = evidence.trace, evidence.clocks[0]
    if evidence.at_warmup_end is None:
        return ()
    warmup_end = evidence.at_warmup_end.until - 1
    warmup_length = (
        float(np.interp(warmup_end, clock.ends, clock.counts))
        if trace.integrity.compacted_until
        else compute_warmup_length(clock)
    )
    before = group_stacks(trace.stacks, evidence.at_warmup_end.result, "line")
    after = group_stacks(trace.stacks, evidence.parts[0].stacks.result, "line")
    numbers = trace.stacks.line_numbers
    bytes_before = dict(zip(numbers[before["stack_id"]].tolist(), before["live_bytes"].tolist(), strict=True))
    begin_ns, end_ns = (trace.replay.time_before(event + 1) for event in (warmup_end, clock.judged_at))
    length = clock.length - warmup_length if clock.is_discrete else (end_ns - begin_ns) / 1e9
    growing = []
    for line, stack, after_bytes in zip(
        numbers[after["stack_id"]].tolist(), after["stack_id"].tolist(), after["live_bytes"].tolist(), strict=True
    ):
        before_bytes = bytes_before.get(line, 0)
        if after_bytes > before_bytes:
            growing.append((after_bytes - before_bytes, before_bytes, after_bytes, stack))
    growing = sorted(growing, key=lambda site: -site[0])[:top]
    return tuple(
        GrowingSite(
            Site.of_stack(trace.stacks, stack), stack, before_bytes, after_bytes, growth / length if length > 0 else 0.0
        )
        for growth, before_bytes, after_bytes, stack in growing
    )
