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
MIN_ROUNDS = 8
"""Minimum number of times that a buffer grew."""
MIN_TAKEN_SHARE = 0.8
"""Minimum share of the growths of a buffer by which another stack allocates less."""
TOLERANCE = 0.1
"""Maximum difference between both, as a share of the growth."""
MAX_SUMS = 1 << 23
"""Maximum number of sums, one of each stack between two growths."""
MAX_EVENTS = 1 << 20
"""Number of events searched, the last of the part."""
_ALLOC = KINDS.index("alloc")


def restarts(part: PartEvidence, site: int) -> bool:
    """Return whether the largest block of a line became small again and again, and then grew again."""
    live: dict[int, int] = {}
    live_largest: int | None = 0  # None after it was freed
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
                if live.pop(address, None) == live_largest:
                    live_largest = None
                continue
            live[address] = size
            live_largest = None if live_largest is None else max(live_largest, size)
            small_blocks = small_blocks + 1 if 2 * size <= largest else 0
            largest = max(largest, size)
            if small_blocks >= MIN_SMALL_BLOCKS:
                live_largest = max(live.values()) if live_largest is None else live_largest
                if 2 * live_largest <= largest:
                    restart_count += 1
                    largest, small_blocks = live_largest, 0
    return restart_count >= MIN_RESTARTS


def count_rounds_taken(part: PartEvidence, site: int) -> int:
    """Return how often the buffer of a line grew, if another stack allocated less each time by as much; else 0."""
    parts = [
        np.stack([events[name].astype(np.int64) for name in ("stack_id", "requested_bytes")], axis=1)
        for events in _read_events(part, ("alloc",))
    ]
    if not parts:
        return 0
    stacks, sizes = np.concatenate(parts).T
    own_rows = np.flatnonzero(part.device.numbers.of(stacks) == site)
    own_sizes = sizes[own_rows]
    is_record = own_sizes > np.append(-1, np.maximum.accumulate(own_sizes)[:-1])
    growth = np.diff(own_sizes[is_record])
    distinct, stack_of_row = np.unique(stacks, return_inverse=True)
    if len(growth) < MIN_ROUNDS or len(distinct) * (len(growth) + 2) > MAX_SUMS:
        return 0
    totals = np.zeros((len(distinct), len(growth) + 2), np.int64)
    np.add.at(totals, (stack_of_row, np.searchsorted(own_rows[is_record], np.arange(len(sizes)), side="right")), sizes)
    # Without what was allocated before the first round, and in the last, which may be incomplete.
    fall = -np.diff(totals[:, 1:-1], axis=1)
    is_taken = np.abs(fall - growth[:-1]) <= TOLERANCE * growth[:-1]
    return len(growth) if (is_taken.mean(axis=1) >= MIN_TAKEN_SHARE).any() else 0


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
