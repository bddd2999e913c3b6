"""Garbage of reference cycles: memory that no variable refers to, until Python's garbage collector frees it.

The collector counts objects, not bytes: cycles that hold much memory may wait long for it. Of the recorded collections,
the `_MAX_COLLECTIONS` with the most events are examined: the live blocks before a collection that its thread freed
during it were garbage.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from ...errors import CompactedError
from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.sites import Site
from ...reading.table import Table, sums
from ..leaks.leak import Leak, NoHolder
from .inefficiency import MIN_BYTES, MIN_SHARE, Inefficiency

GARBAGE = "garbage"
_MAX_COLLECTIONS = 8


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


def find_garbage(trace: RecordedTrace, device: str, collections: Sequence[Collection]) -> Inefficiency | None:
    """Return the most garbage that one collection freed on a device, if it is `MIN_SHARE` of the allocated peak.

    Its line allocated the most of it. figures: collections (all that were recorded), blocks. Bytes are those of blocks.
    """
    peak = trace.replay.peak("allocated", device)
    if peak is None or peak.bytes < MIN_BYTES:
        return None
    largest = sorted(collections, key=lambda row: row[0] - row[1])[:_MAX_COLLECTIONS]
    examined = (_read_garbage(trace, device, *row) for row in largest)
    worst = max(
        (garbage for garbage in examined if garbage is not None), key=lambda garbage: garbage.bytes, default=None
    )
    if worst is None or worst.bytes < max(MIN_BYTES, MIN_SHARE * peak.bytes):
        return None
    worst.figures["collections"] = len(collections)
    return worst


def explain_by_collections(trace: RecordedTrace, leak: Leak, collections: Sequence[Collection]) -> Leak:
    """Return the leak; if no scan reached its blocks and a later collection freed half of them, with that reason."""
    if leak.no_holder is not NoHolder.NOT_REACHED:
        return leak
    later = [collection for collection in collections if collection[0] > leak.judged_at]
    if not later:
        return leak
    judged_at = max(leak.judged_at + 1, trace.integrity.compacted_until)
    blocks = trace.replay.live(judged_at, leak.device, leak.block_stacks)["alloc_seq"]
    for collection in sorted(later, key=lambda row: row[0] - row[1])[:_MAX_COLLECTIONS]:
        with contextlib.suppress(CompactedError):
            garbage = _list_garbage(trace, leak.device, *collection)[1]
            if 2 * int(np.isin(blocks, garbage["alloc_seq"]).sum()) >= len(blocks) > 0:
                return dataclasses.replace(leak, no_holder=NoHolder.COLLECTED)
    return leak


def _list_garbage(trace: RecordedTrace, device: str, first: int, end: int, thread: int) -> tuple[Table, Table]:
    """Return the live blocks before the collection of the events from `first` to `end`, and those that it freed.

    Raises CompactedError.
    """
    live = trace.replay.live(first, device)
    freed = [
        events["address"][(events["thread"] == thread) & (trace.devices_of(events) == device)]
        for events in trace.iter_events(Range(first, end), FREES, with_state=False)
    ]
    return live, live.take(np.isin(live["address"], np.concatenate(freed))) if freed else live.take([])


def _read_garbage(trace: RecordedTrace, device: str, first: int, end: int, thread: int) -> Inefficiency | None:
    """Return what the collection of the events from `first` to `end` freed; None if unknown or nothing."""
    try:
        live, garbage = _list_garbage(trace, device, first, end, thread)
    except CompactedError:
        return None
    if not len(garbage):
        return None
    by_stack = sums(garbage["stack_id"], garbage["block_bytes"], int(garbage["stack_id"].max()) + 1)
    stack = int(by_stack.argmax())
    return Inefficiency(
        kind=GARBAGE,
        device=device,
        bytes=int(garbage["block_bytes"].sum()),
        total_bytes=int(live["block_bytes"].sum()),
        seconds=max(trace.replay.time_before(end) - trace.begin_ns, 0) / 1e9,
        site=Site.of_stack(trace.stacks, stack) if stack else None,
        stack_id=stack,
        site_bytes=int(by_stack[stack]),
        figures={"blocks": len(garbage)},
    )
