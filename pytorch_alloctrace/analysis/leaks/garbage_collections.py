"""Collections of Python's garbage collector, and the blocks that they freed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection as Container
from collections.abc import Sequence

import numpy as np

from ...errors import CompactedError
from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.table import Table

_MAX_COLLECTIONS = 8
"""Maximum number of collections examined, those with the most events."""

Collection = tuple[int, int, int]
"""First and last event of a garbage collection, and its thread."""


def list_collections(trace: RecordedTrace) -> list[Collection]:
    """Return the recorded garbage collections after the compacted part of a trace. Takes a pass over its events."""
    begin = trace.integrity.compacted_until
    return [
        (first, end, thread)
        for events in trace.iter_events(Range(begin, trace.end_seq), ["garbage_collection"], with_state=False)
        for first, end, thread in zip(*(events[name].tolist() for name in ("address", "seq", "thread")), strict=True)
        if begin <= first < end  # in a corrupt trace, the address may be any number
    ]


def list_largest(collections: Sequence[Collection]) -> list[Collection]:
    """Return the collections to examine, the most events first."""
    return sorted(collections, key=lambda row: row[0] - row[1])[:_MAX_COLLECTIONS]


def list_collected(trace: RecordedTrace, device: str, first: int, end: int, thread: int) -> tuple[Table, Table]:
    """Return the live blocks before the collection of the events from `first` to `end`, and those that it freed.

    Raises CompactedError.
    """
    live = trace.replay.live(first, device)
    freed = [
        events["address"][(events["thread"] == thread) & (trace.devices_of(events) == device)]
        for events in trace.iter_events(Range(first, end), FREES, with_state=False)
    ]
    return live, live.take(np.isin(live["address"], np.concatenate(freed))) if freed else live.take([])


def count_collected(
    trace: RecordedTrace, device: str, stacks: Container[int], collections: Sequence[Collection]
) -> int:
    """Return the number of blocks of some stacks that the examined collections freed."""
    count = 0
    for collection in list_largest(collections):
        with contextlib.suppress(CompactedError):
            freed = list_collected(trace, device, *collection)[1]
            count += int(np.isin(freed["stack_id"], [*stacks]).sum())
    return count
