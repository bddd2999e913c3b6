"""Sizes of the blocks that lines allocate, in order: they tell buffers that restart, and buffers filled from others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import CompactedError
from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import FREES
from ...reading.table import Table

if TYPE_CHECKING:
    from ..evidence import PartEvidence

MIN_RESTARTS = 2
MIN_SMALL_BLOCKS = 3
"""Minimum number of blocks of at most half of the largest size before, for a buffer to have restarted."""
MIN_RECORDS = 8
"""Minimum number of sizes of a buffer, each larger than all before."""
MIN_TAKEN_SHARE = 0.8
"""Minimum share of the growths of a buffer by which the blocks of another line shrink."""
MAX_DISTINCT_SHARE = 8
"""Maximum number of sizes of the other stack, as a multiple of that of the buffer."""
MAX_EVENTS = 1 << 20
"""Number of events searched, the last of the part."""
_ALLOC = KINDS.index("alloc")


def restarts(part: PartEvidence, site: int) -> bool:
    """Return whether the largest block of a line became small again and again, and then grew again."""
    live: dict[int, int] = {}
    largest = small_blocks = restart_count = 0
    for events in _read_events(part, ("alloc", *FREES)):
        is_of_line = (events["kind"] == _ALLOC) & (part.device.numbers.of(events["stack_id"]) == site)
        is_free = (events["kind"] != _ALLOC) & np.isin(events["address"], [*live, *events["address"][is_of_line]])
        rows = is_of_line | is_free
        for address, size, is_allocation in zip(
            events["address"][rows].tolist(),
            events["requested_bytes"][rows].tolist(),
            is_of_line[rows].tolist(),
            strict=True,
        ):
            if not is_allocation:
                live.pop(address, None)
                continue
            live[address] = size
            small_blocks = small_blocks + 1 if 2 * size <= largest else 0
            largest = max(largest, size)
            if small_blocks >= MIN_SMALL_BLOCKS and 2 * (live_largest := max(live.values())) <= largest:
                restart_count += 1
                largest, small_blocks = live_largest, 0
    return restart_count >= MIN_RESTARTS


def count_rounds_taken(part: PartEvidence, site: int) -> int:
    """Return how often the buffer of a line grew, if blocks of another stack shrank each time by as much; else 0."""
    parts = [
        np.stack([events[name].astype(np.int64) for name in ("stack_id", "requested_bytes")], axis=1)
        for events in _read_events(part, ("alloc",))
    ]
    if not parts:
        return 0
    stacks, sizes = np.concatenate(parts).T
    own = sizes[part.device.numbers.of(stacks) == site]
    records = own[own > np.append(-1, np.maximum.accumulate(own)[:-1])]
    if len(records) < MIN_RECORDS:
        return 0
    min_matches = MIN_TAKEN_SHARE * len(records)
    distinct_stacks, counts = np.unique(stacks, return_counts=True)
    for stack in distinct_stacks[counts >= min_matches].tolist():
        distinct, first_at = np.unique(sizes[stacks == stack], return_index=True)
        if not min_matches <= len(distinct) <= MAX_DISTINCT_SHARE * len(records):
            continue
        for size in distinct.tolist():
            rests = int(records[-1]) + size - records
            rows = np.minimum(np.searchsorted(distinct, rests), len(distinct) - 1)
            positions = first_at[rows[distinct[rows] == rests]]
            if len(positions) >= min_matches and (np.diff(positions) > 0).all():
                return len(records)
    return 0


def _read_events(part: PartEvidence, kinds: tuple[str, ...]) -> list[Table]:
    """Return events of the device in a part of the run, in order; nothing if they are compacted."""
    trace, clock = part.device.trace, part.uncompacted
    within = Range(max(clock.begin, clock.judged_at + 1 - MAX_EVENTS), clock.judged_at + 1)
    try:
        return [
            events.take(trace.devices_of(events) == part.device.device)
            for events in trace.iter_events(within, kinds, with_state=False)
        ]
    except CompactedError:
        return []
