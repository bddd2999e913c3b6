"""Choice of the snapshots that the page shows, and the limits of the page's size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...analysis.summary import Summary
from ...reading.names import REGION_BEGIN, REGION_END
from ...reading.recorded import RecordedTrace
from ..site_names import SiteNames


@dataclass(frozen=True)
class Bounds:
    """Size limits of a page. The page reports everything that is left out or merged."""

    snapshots: int
    maps: int
    """Snapshots with the segments, blocks and free memory of a device."""
    block_rows: int
    """Blocks that are read for all maps of a device together."""
    block_runs: int
    """Rows of the run-length encoded block table of a device."""
    holding_runs: int
    devices: int = 16
    """The largest machines have 16 devices in one process."""
    stacks: int = 6000
    sites: int = 1500
    marks: int = 1000
    failed_allocations: int = 20
    segment_events: int = 4000


_SMALL = Bounds(snapshots=120, maps=72, block_rows=400_000, block_runs=60_000, holding_runs=60_000)
_MEDIUM = Bounds(snapshots=120, maps=72, block_rows=1_500_000, block_runs=90_000, holding_runs=90_000)
_LARGE = Bounds(snapshots=120, maps=72, block_rows=1_500_000, block_runs=250_000, holding_runs=200_000)

SERVED_SNAPSHOT_BOUNDS = Bounds(
    snapshots=1, maps=1, block_rows=1, block_runs=500_000, holding_runs=1 << 40, stacks=1 << 40, sites=1 << 40
)
"""Limits of a snapshot requested from the server. No screen shows more blocks."""

_MAX_TOTAL_MAPS = 8 * 72
"""Maximum number of maps of all devices together. Each map costs time."""
_MIN_MAPS_PER_DEVICE = 8


def choose_bounds(events: int, devices: int) -> Bounds:
    bounds = _SMALL if events <= 100_000 else _MEDIUM if events <= 5_000_000 else _LARGE
    return replace(bounds, maps=min(bounds.maps, max(_MAX_TOTAL_MAPS // max(devices, 1), _MIN_MAPS_PER_DEVICE)))


ALWAYS, NAMED, STEPS, GRID = range(4)
"""Priorities of snapshots, the highest first."""
_GRID_INTERVALS = 120


@dataclass
class Snapshot:
    """A position at which the page shows the memory, and the reasons for the choice."""

    seq: int
    """Event after which the state is shown."""
    priority: int
    reasons: list[str] = field(default_factory=list)


def choose_snapshots(
    trace: RecordedTrace, summary: Summary, names: SiteNames, devices: Sequence[str], limit: int
) -> list[Snapshot]:
    """Return at most `limit` snapshots, ordered by event.

    Peaks, the end, failed allocations and findings are chosen first; then marks and regions, ends of steps, and the
    maximum of each grid interval. Within a priority, the snapshots are spread evenly.
    """
    chosen: dict[int, Snapshot] = {}

    def add(priority: int, candidates: Iterable[tuple[int, str]]) -> None:
        for seq, reason in candidates:
            if seq < 0 or not trace.is_known_at(seq):
                continue
            if seq not in chosen:
                if len(chosen) >= limit:
                    continue
                chosen[seq] = Snapshot(seq, priority)
            if reason and reason not in chosen[seq].reasons:
                chosen[seq].reasons.append(reason)

    add(ALWAYS, _iter_peaks(trace, devices))
    add(ALWAYS, [(trace.end_seq - 1, "end")])
    steps = trace.steps()
    step_ends = [
        (seq, f"end of step {step}") for seq, step in zip(*(steps[n].tolist() for n in ("seq", "step")), strict=True)
    ]
    add(ALWAYS, step_ends[-1:])
    add(ALWAYS, _iter_findings(trace, summary))
    add(
        ALWAYS,
        _sample_evenly([(seq - 1, "before a failed allocation") for seq in trace.failed_allocations], limit // 6),
    )
    add(NAMED, _sample_evenly(_list_marks(trace, names), limit // 4))
    add(STEPS, _sample_evenly(step_ends, max((limit - len(chosen)) // 2, 0)))
    add(GRID, _sample_evenly(sorted(set(_iter_interval_maxima(trace))), max(limit - len(chosen), 0)))
    return [chosen[seq] for seq in sorted(chosen)]


def _iter_peaks(trace: RecordedTrace, devices: Sequence[str]) -> Iterator[tuple[int, str]]:
    for device in devices:
        for measure in ("allocated", "reserved"):
            peak = trace.replay.peak(measure, device)
            if peak is not None:
                yield peak.seq, f"peak of {measure} memory on {device}"


def _iter_findings(trace: RecordedTrace, summary: Summary) -> Iterator[tuple[int, str]]:
    for device in summary.devices:
        for inefficiency in device.inefficiencies:
            seq = trace.first_event_after_time(trace.begin_ns + round(inefficiency.seconds * 1e9)) - 1
            yield seq, f"finding on {device.device}: {inefficiency.kind}"
        if device.failure is not None:
            yield device.failure.seq - 1, "before a failed allocation"


def _list_marks(trace: RecordedTrace, names: SiteNames) -> list[tuple[int, str]]:
    prefixes = {REGION_BEGIN: "beginning of ", REGION_END: "end of "}
    return [(seq, f"{prefixes.get(kind, '')}{names.mark(name)}") for kind, seq, _, name in trace.positions.marks]


def _iter_interval_maxima(trace: RecordedTrace) -> Iterator[tuple[int, str]]:
    for device in trace.replay.devices:
        timeline = trace.timeline(_GRID_INTERVALS, device)
        yield from ((seq, "") for seq in timeline["seq"][timeline["allocated_bytes_max"] > 0].tolist())


def _sample_evenly(items: list[Any], count: int) -> list[Any]:
    """Return at most `count` of the items, the first and the last among them."""
    if len(items) <= count:
        return items
    if count <= 0:
        return []
    return [items[index] for index in np.unique(np.linspace(0, len(items) - 1, count).round().astype(int))]


def rank_snapshots(snapshots: list[Snapshot]) -> list[int]:
    """Return the snapshot numbers by priority, ordered so that any prefix of a priority is spread evenly."""
    ranked = []
    for priority in (ALWAYS, NAMED, STEPS, GRID):
        numbers = [number for number, snapshot in enumerate(snapshots) if snapshot.priority == priority]
        ranked += [numbers[index] for index in _bit_reversal(len(numbers))]
    return ranked


def _bit_reversal(count: int) -> list[int]:
    """Return 0 to count - 1 in bit-reversal order."""
    bits = max(count - 1, 1).bit_length()
    return sorted(range(count), key=lambda index: int(f"{index:0{bits}b}"[::-1], 2))
