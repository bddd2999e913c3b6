"""Garbage of reference cycles: memory that no variable refers to, until Python's garbage collector frees it.

The collector counts objects, not bytes: cycles that hold much memory may wait long for it. Of the recorded collections,
those with the most events are examined: the live blocks before a collection that its thread freed
during it were garbage. So were the blocks that an object scan found in a cycle to which no variable leads.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence

import numpy as np

from ...errors import CompactedError
from ...reading.recorded import Held, RecordedTrace
from ...reading.sites import Site
from ...reading.table import Table, sums
from ..evidence import DeviceEvidence
from ..leaks.garbage_collections import Collection, list_collected, list_largest
from ..leaks.leak import Doubt, Growth, Leak, NoHolder
from ..leaks.referrers import find_holder, find_step, list_garbage, make_holder
from .inefficiency import MIN_BYTES, MIN_SHARE, Inefficiency, elapsed_s

GARBAGE = "garbage"
_MAX_SCANNED = 4
"""Maximum number of groups of garbage examined that object scans found."""


def find_garbage(evidence: DeviceEvidence, collections: Sequence[Collection]) -> Inefficiency | None:
    """Return the most garbage that one collection freed, or one scan found, if it is `MIN_SHARE` of the allocated peak.

    Its line allocated the most of it. figures: collections (all that were recorded), blocks, is_freed (0 if it was
    found by a scan). Bytes are those of blocks.
    """
    trace, device = evidence.trace, evidence.device
    peak = trace.replay.peak("allocated", device)
    if peak is None or peak.bytes < MIN_BYTES:
        return None
    largest = list_largest(collections)
    scanned = sorted(list_garbage(trace), key=lambda found: -found.bytes)[:_MAX_SCANNED]
    examined = [
        *(_read_collection(evidence, *row) for row in largest),
        *(_read_scan(evidence, found) for found in scanned),
    ]
    worst, blocks = max(filter(None, examined), key=lambda found: found[0].bytes, default=(None, None))
    if worst is None or blocks is None or worst.bytes < max(MIN_BYTES, MIN_SHARE * peak.bytes):
        return None
    worst.figures["collections"] = len(collections)
    holder = worst.holder or find_holder(evidence, tuple(np.unique(blocks["stack_id"]).tolist()), blocks)
    return dataclasses.replace(worst, holder=holder)


def explains(garbage: Inefficiency, note: Growth) -> bool:
    """Return whether a finding on garbage covers a note: blocks that were garbage, or were released with it."""
    is_same = garbage.stack_id in note.stack_ids and garbage.device == note.device
    return note.doubt in (Doubt.ACCUMULATED, Doubt.GARBAGE) and is_same and 2 * garbage.bytes >= note.allocated_bytes


def explain_by_collections(trace: RecordedTrace, leak: Leak, collections: Sequence[Collection]) -> Leak:
    """Return the leak; if no scan reached its blocks and a later collection freed half of them, with that reason."""
    if leak.no_holder is not NoHolder.NOT_REACHED:
        return leak
    later = [collection for collection in collections if collection[0] > leak.judged_at]
    if not later:
        return leak
    judged_at = max(leak.judged_at + 1, trace.integrity.compacted_until)
    blocks = trace.replay.live(judged_at, leak.device, leak.block_stacks)["alloc_seq"]
    for collection in list_largest(later):
        with contextlib.suppress(CompactedError):
            garbage = list_collected(trace, leak.device, *collection)[1]
            if 2 * int(np.isin(blocks, garbage["alloc_seq"]).sum()) >= len(blocks) > 0:
                return dataclasses.replace(leak, no_holder=NoHolder.COLLECTED)
    return leak


_Garbage = tuple[Inefficiency, Table]
"""Garbage, and its blocks."""


def _read_collection(evidence: DeviceEvidence, first: int, end: int, thread: int) -> _Garbage | None:
    """Return what the collection of the events from `first` to `end` freed; None if unknown or nothing."""
    try:
        live, garbage = list_collected(evidence.trace, evidence.device, first, end, thread)
    except CompactedError:
        return None
    return _create_finding(evidence, live, garbage, end) if len(garbage) else None


def _read_scan(evidence: DeviceEvidence, scan: Held) -> _Garbage | None:
    """Return the garbage that an object scan found; None if its memory is unknown or on other devices."""
    try:
        live = evidence.trace.replay.live(scan.event, evidence.device)
    except CompactedError:
        return None
    garbage = live.take(np.isin(live["address"], scan.addresses))
    if not len(garbage):
        return None
    return _create_finding(evidence, live, garbage, scan.event, scan)


def _create_finding(
    evidence: DeviceEvidence, live: Table, garbage: Table, event: int, scan: Held | None = None
) -> _Garbage:
    """Describe garbage among the live blocks. scan: the object that a scan found, with addresses of some blocks."""
    trace = evidence.trace
    scale = 1.0 if scan is None else max(scan.count / len(scan.addresses), 1.0)
    size = round(scale * int(garbage["block_bytes"].sum()))
    if scan is not None and len(garbage) == len(scan.addresses) < scan.count:
        size = scan.bytes  # of all blocks, without what their sizes are rounded up by
    by_stack = sums(garbage["stack_id"], garbage["block_bytes"], int(garbage["stack_id"].max()) + 1)
    stack = int(by_stack.argmax())
    inefficiency = Inefficiency(
        kind=GARBAGE,
        device=evidence.device,
        bytes=size,
        total_bytes=int(live["block_bytes"].sum()),
        seconds=elapsed_s(trace, trace.replay.time_before(event)),
        site=Site.of_stack(trace.stacks, stack) if stack else None,
        stack_id=stack,
        site_bytes=min(round(scale * int(by_stack[stack])), size),
        holder=None if scan is None else make_holder(trace, [scan], find_step(trace, scan.event), 1.0),
        figures={"blocks": round(scale * len(garbage)), "is_freed": float(scan is None)},
    )
    return inefficiency, garbage
