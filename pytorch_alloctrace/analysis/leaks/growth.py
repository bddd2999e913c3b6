"""Growth: what is live at the end of each step, and which lines hold more at the end than after the warm-up.

Growth is not a verdict: it may be a leak (see `judge`), a cache that fills up, or longer inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, group_stacks
from .windows import WARMUP_SHARE, warmup_length

if TYPE_CHECKING:
    from ..evidence import DeviceEvidence

_SLOPE_POINTS = 300
"""Most points for the slope, evenly chosen: the median of all pairs costs their square."""
_SAMPLES = 200
"""Most points of a chart."""


@dataclass(frozen=True)
class StepGrowth:
    """Requested bytes that are live at the end of each step."""

    steps: int
    warmup: int
    """Steps at the beginning that the slope leaves out."""
    first_bytes: int
    median_bytes: int
    last_bytes: int
    lowest_bytes: int
    highest_bytes: int
    bytes_per_step: float
    """Bytes per step after the warm-up: the median of the slopes between any two steps, so one jump is not growth."""
    seconds_per_step: float
    samples: tuple[int, ...]
    """The level at the end of steps that are evenly spaced over the run."""


@dataclass(frozen=True)
class GrowingSite:
    """A line that holds more at the judged position than it held after the warm-up."""

    site: Site
    stack_id: int
    before_bytes: int
    """Bytes live at the end of the warm-up."""
    after_bytes: int
    """Bytes live at the judged event: see `Clock`."""
    bytes_per_unit: float
    """Bytes per step, iteration or second, on average: see `LeakVerdict.unit`."""

    @property
    def grown_bytes(self) -> int:
        """What it grew by."""
        return self.after_bytes - self.before_bytes


def step_growth(trace: RecordedTrace, device: str) -> StepGrowth | None:
    """Return how a device's memory grew from step to step; None for a trace without steps."""
    steps = trace.steps(device)
    if not len(steps):
        return None
    levels, times = steps["live_bytes"], steps["time_ns"]
    warmup = max(1, int(np.ceil(WARMUP_SHARE * len(levels))))
    picked = np.unique(np.linspace(0, len(levels) - 1, min(_SAMPLES, len(levels))).round().astype(int))
    return StepGrowth(
        steps=len(levels),
        warmup=warmup,
        first_bytes=int(levels[0]),
        median_bytes=int(np.median(levels)),
        last_bytes=int(levels[-1]),
        lowest_bytes=int(levels.min()),
        highest_bytes=int(levels.max()),
        bytes_per_step=median_slope(levels[warmup:]),
        seconds_per_step=float(times[-1] - times[0]) / 1e9 / max(len(levels) - 1, 1),
        samples=tuple(int(level) for level in levels[picked]),
    )


def median_slope(levels: npt.NDArray[np.int64]) -> float:
    """The median slope between any two of evenly spaced values (Theil and Sen); 0 for fewer than two."""
    if len(levels) < 2:
        return 0.0
    at = np.unique(np.linspace(0, len(levels) - 1, min(_SLOPE_POINTS, len(levels))).round().astype(int))
    first, second = np.triu_indices(len(at), k=1)
    return float(np.median((levels[at[second]] - levels[at[first]]) / (at[second] - at[first])))


def growing_sites(evidence: DeviceEvidence, top: int) -> tuple[GrowingSite, ...]:
    """Return the lines that grew the most since the warm-up, most bytes first; none if the run is too short to
    judge."""
    trace, clock = evidence.trace, evidence.clocks[0]
    if evidence.at_warmup_end is None:
        return ()
    end = evidence.at_warmup_end.until - 1
    begun = float(np.interp(end, clock.ends, clock.counts)) if trace.integrity.compacted_until else warmup_length(clock)
    before = group_stacks(trace.stacks, evidence.at_warmup_end.result, "line")
    after = group_stacks(trace.stacks, evidence.parts[0].stacks.result, "line")
    lines = evidence.numbers
    held_before = dict(zip(lines.of(before["stack_id"]).tolist(), before["live_bytes"].tolist(), strict=True))
    begin_ns, end_ns = (trace.replay.time_before(event + 1) for event in (end, clock.judged_at))
    length = clock.length - begun if clock.whole else (end_ns - begin_ns) / 1e9
    growing = []
    for line, stack, holds in zip(
        lines.of(after["stack_id"]).tolist(), after["stack_id"].tolist(), after["live_bytes"].tolist(), strict=True
    ):
        held = held_before.get(line, 0)
        if holds > held:
            growing.append((holds - held, held, holds, stack))
    growing = sorted(growing, key=lambda site: -site[0])[:top]
    return tuple(
        GrowingSite(Site.of_stack(trace.stacks, stack), stack, held, holds, grew / length if length > 0 else 0.0)
        for grew, held, holds, stack in growing
    )
