"""Growth: what is live at the end of each step, and which lines hold more at the end than after the warm-up.

Growth is not a verdict: it may be a leak (see `judge`), a cache that fills up, or longer inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from .clock import Clock, judged_parts
from .windows import WARMUP_SHARE

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
    first: int
    median: int
    last: int
    lowest: int
    highest: int
    slope: float
    """Bytes per step after the warm-up: the median of the slopes between any two steps, so one jump is not growth."""
    seconds_per_step: float
    samples: tuple[int, ...]
    """The level at the end of steps that are evenly spaced over the run."""


@dataclass(frozen=True)
class GrowingSite:
    """A line that holds more at the judged position than it held after the warm-up."""

    site: Site
    stack_id: int
    before: int
    """Bytes live at the end of the warm-up."""
    after: int
    """Bytes live at the judged event: see `Clock`."""
    rate: float
    """Bytes per step, iteration or second, on average: see `LeakVerdict.unit`."""

    @property
    def bytes(self) -> int:
        """What it grew by."""
        return self.after - self.before


def step_growth(trace: RecordedTrace, device: str) -> StepGrowth | None:
    """None for a trace without steps."""
    steps = trace.steps(device=device)
    if steps.empty:
        return None
    levels = steps["live_bytes"].to_numpy(np.int64)
    times = steps["time_ns"].to_numpy(np.int64)
    warmup = max(1, int(np.ceil(WARMUP_SHARE * len(levels))))
    picked = np.unique(np.linspace(0, len(levels) - 1, min(_SAMPLES, len(levels))).round().astype(int))
    return StepGrowth(
        steps=len(levels),
        warmup=warmup,
        first=int(levels[0]),
        median=int(np.median(levels)),
        last=int(levels[-1]),
        lowest=int(levels.min()),
        highest=int(levels.max()),
        slope=median_slope(levels[warmup:]),
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


def warmup_end(trace: RecordedTrace, clock: Clock) -> int:
    """The event with which the warm-up ends."""
    # What was live then is not known where the trace is folded further.
    return max(int(np.interp(_warmup(clock), clock.counts, clock.ends)), trace.integrity.folded_until - 1)


def _warmup(clock: Clock) -> float:
    """Its length, in units of the clock."""
    # Where there are steps, at the end of one.
    steps = float(max(np.ceil(WARMUP_SHARE * (clock.length + 1)), 1))
    return steps - 1 if clock.whole else WARMUP_SHARE * clock.length


def growing_sites(trace: RecordedTrace, device: str, top: int) -> tuple[GrowingSite, ...]:
    """The lines that grew the most since the warm-up, most bytes first; empty if the run is too short to judge."""
    clock = judged_parts(trace, device)[0]
    if clock.too_short:
        return ()
    end = warmup_end(trace, clock)
    if end >= clock.judged_at:
        return ()
    begun = float(np.interp(end, clock.ends, clock.counts)) if trace.integrity.folded_until else _warmup(clock)
    after = trace.sites(clock.judged_at, device=device)  # first: the replay stands near it
    before = trace.sites(end, device=device).to_dict("records")
    held_before = {(row["filename"], row["line"], row["site"]): int(row["live_bytes"]) for row in before}
    begin_ns, end_ns = (trace.replay.time_before(event + 1) for event in (end, clock.judged_at))
    length = clock.length - begun if clock.whole else (end_ns - begin_ns) / 1e9
    found = []
    for row in after.to_dict("records"):
        held, holds = held_before.get((row["filename"], row["line"], row["site"]), 0), int(row["live_bytes"])
        if holds > held:
            stack = int(row["stack_id"])
            rate = (holds - held) / length if length > 0 else 0.0
            found.append(GrowingSite(Site.of_stack(trace.stacks, stack), stack, held, holds, rate))
    return tuple(sorted(found, key=lambda site: -site.bytes)[:top])
