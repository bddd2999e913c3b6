"""The moments at which the page shows everything, and how much of it fits: those that someone would ask for, and an
even grid between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...analysis.summary import Summary
from ...reading.names import REGION_BEGIN, REGION_END
from ...reading.recorded import RecordedTrace


@dataclass(frozen=True)
class Bounds:
    """The most of each that the page has. What is beyond is left out, or put together, and the page says so."""

    moments: int
    """At which the cursor can stop."""
    maps: int
    """Moments at which the page has the segments, blocks and free memory of each device."""
    block_rows: int
    """Blocks that are read for maps of segments, over all moments."""
    block_runs: int
    """Rows of the table of blocks, of each device."""
    holding_runs: int
    """Rows of the table of what each stack holds, of each device."""
    devices: int = 16
    """As many as the largest machines have in one process: the work is in proportion to them."""
    stacks: int = 6000
    sites: int = 1500
    marks: int = 1000
    refusals: int = 20
    segment_events: int = 4000


_SMALL = Bounds(moments=120, maps=72, block_rows=400_000, block_runs=60_000, holding_runs=60_000)
_MEDIUM = Bounds(moments=120, maps=72, block_rows=1_500_000, block_runs=90_000, holding_runs=90_000)
_LARGE = Bounds(moments=120, maps=72, block_rows=1_500_000, block_runs=250_000, holding_runs=200_000)

MOMENT = Bounds(
    moments=1, maps=1, block_rows=1, block_runs=500_000, holding_runs=1 << 40, stacks=1 << 40, sites=1 << 40
)
"""Of one moment that a page which is live asks for: all of it, but for blocks that no screen could show."""


_DEVICE_MAPS, _LEAST_MAPS = 8 * 72, 8
"""Maps of all devices together, since each takes time to make; and of one device at least."""


def bounds_for(events: int, devices: int) -> Bounds:
    """The bounds for a trace of so many events, on so many devices."""
    found = _SMALL if events <= 100_000 else _MEDIUM if events <= 5_000_000 else _LARGE
    return replace(found, maps=min(found.maps, max(_DEVICE_MAPS // max(devices, 1), _LEAST_MAPS)))


ALWAYS, NAMED, STEPS, GRID = range(4)
"""How soon a moment is taken, where not all fit."""
_INTERVALS = 120
"""Of the grid: the highest of each."""


@dataclass
class Moment:
    """A position, and why it is one."""

    seq: int
    """The state is the one after this event."""
    order: int
    reasons: list[str] = field(default_factory=list)


def choose_moments(trace: RecordedTrace, summary: Summary, devices: Sequence[str], bound: int) -> list[Moment]:
    """Return at most `bound` moments, by event: peaks of each device, the end, failed allocations, findings; then marks
    and regions; then ends of steps; then the highest of each of equal intervals. Within a kind, evenly."""
    found: dict[int, Moment] = {}

    def take(order: int, wanted: Iterable[tuple[int, str]]) -> None:
        for seq, reason in wanted:
            if seq < 0 or not trace.is_known_at(seq):
                continue
            if seq not in found:
                if len(found) >= bound:
                    continue
                found[seq] = Moment(seq, order)
            if reason and reason not in found[seq].reasons:
                found[seq].reasons.append(reason)

    take(ALWAYS, _peaks(trace, devices))
    take(ALWAYS, [(trace.end_seq - 1, "end")])
    steps = trace.steps()
    ends = [
        (seq, f"end of step {step}") for seq, step in zip(*(steps[n].tolist() for n in ("seq", "step")), strict=True)
    ]
    take(ALWAYS, ends[-1:])
    take(ALWAYS, _findings(trace, summary))
    take(ALWAYS, _evenly([(seq - 1, "before a failed allocation") for seq in trace.failed_allocations], bound // 6))
    take(NAMED, _evenly(_marks(trace), bound // 4))
    take(STEPS, _evenly(ends, max((bound - len(found)) // 2, 0)))
    take(GRID, _evenly(sorted(set(_highest(trace))), max(bound - len(found), 0)))
    return [found[seq] for seq in sorted(found)]


def _peaks(trace: RecordedTrace, devices: Sequence[str]) -> Iterator[tuple[int, str]]:
    for device in devices:
        for measure in ("allocated", "reserved"):
            peak = trace.replay.peak(measure, device)
            if peak is not None:
                yield peak.seq, f"peak of {measure} memory on {device}"


def _findings(trace: RecordedTrace, summary: Summary) -> Iterator[tuple[int, str]]:
    for device in summary.devices:
        for inefficiency in device.inefficiencies:
            seq = trace.first_event_after_time(trace.begin_ns + round(inefficiency.seconds * 1e9)) - 1
            yield seq, f"finding on {device.device}: {inefficiency.kind}"
        if device.refused is not None:
            yield device.refused.seq - 1, "before a failed allocation"


def _marks(trace: RecordedTrace) -> list[tuple[int, str]]:
    words = {REGION_BEGIN: "beginning of ", REGION_END: "end of "}
    return [(seq, f"{words.get(kind, '')}{name}") for kind, seq, _, name in trace.positions.marks]


def _highest(trace: RecordedTrace) -> Iterator[tuple[int, str]]:
    for device in trace.replay.devices:
        timeline = trace.timeline(_INTERVALS, device)
        yield from ((seq, "") for seq in timeline["seq"][timeline["allocated_bytes_max"] > 0].tolist())


def _evenly(items: list[Any], most: int) -> list[Any]:
    """All, or `most` of them, from the first to the last."""
    if len(items) <= most:
        return items
    if most <= 0:
        return []
    return [items[index] for index in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int))]


def by_importance(moments: list[Moment]) -> list[int]:
    """The numbers of the moments, the most important first; those of one kind so that any beginning is even."""
    made = []
    for order in (ALWAYS, NAMED, STEPS, GRID):
        numbers = [number for number, moment in enumerate(moments) if moment.order == order]
        made += [numbers[index] for index in _spread(len(numbers))]
    return made


def _spread(count: int) -> list[int]:
    """0 to count - 1, by their binary digits read backwards."""
    bits = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda index: int(f"{index:0{bits}b}"[::-1], 2))
