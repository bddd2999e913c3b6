"""Copies in the cache of torch.autocast, which live until the outermost region ends.

Where gradients are enabled, autocast keeps a 16-bit copy of each float32 weight that requires one, also of models that
the program has dropped: the copy's graph refers to the weight. No Python object refers to the copies. They are
recognized by their end: `autocast.__exit__` frees them.

A region that is left in each iteration frees its copies in time. A region is too long if it spans `MIN_SPANNED` steps,
or iterations of a loop that is not a pass over a model, and if its line frees copies less than `MIN_EXITS` times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...errors import CompactedError
from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.sites import Site
from ...reading.table import Table
from ..leaks.loops import LoopIndex
from ..usage.composition import FORWARD, StackPhases
from .inefficiency import Inefficiency

AUTOCAST = "autocast"
MIN_SHARE = 0.1
"""Minimum share of the peak of allocated bytes."""
MIN_BYTES = 16 << 20
MIN_SPANNED = 3
MIN_EXITS = 12
_FILE = "torch/amp/autocast_mode.py"
_EXIT = "__exit__"


@dataclass(frozen=True, eq=False)
class AutocastExit:
    """End of a region of autocast that freed memory of a device."""

    stack_id: int
    first: int
    """Event of the first free."""
    addresses: npt.NDArray[np.int64]
    """Addresses of the freed blocks."""
    bytes: int
    """Requested bytes of these blocks."""


def list_autocast_exits(trace: RecordedTrace, device: str) -> list[AutocastExit]:
    """Return the ends of regions that freed memory of a device, in order. Takes a pass over the events if any did."""
    is_exit = trace.stacks.ends_in(
        lambda filename, function: filename.replace("\\", "/").endswith(_FILE) and function.rpartition(".")[2] == _EXIT
    )
    if not is_exit.any():
        return []
    # One end of a region: frees without another event of the thread in between.
    parts: list[npt.NDArray[np.int64]] = [np.zeros((0, 6), np.int64)]
    event_counts: Counter[int] = Counter()
    for events in trace.iter_events(
        Range(trace.integrity.compacted_until, trace.end_seq), ["alloc", *FREES], with_state=False
    ):
        rows = events.take(trace.devices_of(events) == device)
        stacks, threads = np.where(rows["stack_id"] < len(is_exit), rows["stack_id"], 0), rows["thread"]
        numbers = np.zeros(len(rows), np.int64)
        for thread in np.unique(threads).tolist():
            of_thread = np.flatnonzero(threads == thread)
            numbers[of_thread] = event_counts[thread] + np.arange(len(of_thread))
            event_counts[thread] += len(of_thread)
        columns = (threads, numbers, rows["seq"], stacks, rows["address"], rows["requested_bytes"])
        parts.append(np.stack([column.astype(np.int64) for column in columns], axis=1)[is_exit[stacks]])
    frees = np.concatenate(parts)
    frees = frees[np.lexsort((frees[:, 1], frees[:, 0]))]
    is_next = (np.diff(frees[:, 0]) == 0) & (np.diff(frees[:, 1]) == 1) & (np.diff(frees[:, 3]) == 0)
    groups = [group for group in np.split(frees, np.flatnonzero(~is_next) + 1) if len(group)]
    exits = []
    for group in groups:
        addresses, first_rows = np.unique(group[:, 4], return_index=True)
        exits.append(AutocastExit(int(group[0, 3]), int(group[0, 2]), addresses, int(group[first_rows, 5].sum())))
    return sorted(exits, key=lambda region: region.first)


@dataclass(frozen=True)
class AutocastMemory:
    """Memory that a too long region of autocast kept until its end. Bytes are those of blocks."""

    site: Site
    """Line that enters the region."""
    stack_id: int
    """Stack of the end of the region."""
    blocks: int
    """Number of blocks that the end of the region freed."""
    bytes: int
    """Bytes of these blocks."""
    copied_bytes: int
    """Bytes of the copies; the rest are weights to which only the copies referred."""


def find_autocast_memory(trace: RecordedTrace, device: str, seq: int, live: Table) -> AutocastMemory | None:
    """Return which of the live blocks before an event the first region that ends afterwards kept."""
    exits = list_autocast_exits(trace, device)
    region = next((region for region in exits if region.first >= seq), None)
    return None if region is None else _measure(trace, region, exits, live)


def find_autocast_cache(trace: RecordedTrace, device: str, exits: Sequence[AutocastExit]) -> Inefficiency | None:
    """Return the most copies that a region freed on a device, if it was too long and they are `MIN_SHARE` of the peak.

    Bytes are those of blocks, with weights to which only the copies referred. Its line is that of the region, with the
    bytes of the copies alone. figures: blocks.
    """
    peak = trace.replay.peak("allocated", device)
    largest = max(exits, key=lambda region: region.bytes, default=None)
    if peak is None or largest is None or largest.bytes < max(MIN_SHARE * peak.bytes, MIN_BYTES):
        return None
    try:
        memory = _measure(trace, largest, exits, trace.replay.live(largest.first, device))
    except CompactedError:
        return None
    if memory is None:
        return None
    return Inefficiency(
        kind=AUTOCAST,
        device=device,
        bytes=memory.bytes,
        total_bytes=peak.bytes,
        seconds=max(trace.replay.time_before(largest.first) - trace.begin_ns, 0) / 1e9,
        site=memory.site,
        stack_id=memory.stack_id,
        site_bytes=memory.copied_bytes,
        figures={"blocks": memory.blocks},
    )


def _measure(
    trace: RecordedTrace, region: AutocastExit, exits: Sequence[AutocastExit], live: Table
) -> AutocastMemory | None:
    """Return which of the live blocks a region freed; None if there are none, or if the region was not too long."""
    site = Site.of_stack(trace.stacks, region.stack_id)
    if sum(Site.of_stack(trace.stacks, other.stack_id) == site for other in exits) >= MIN_EXITS:
        return None
    freed = live.take(np.isin(live["address"], region.addresses))
    stack_ids, sizes = freed["stack_id"], freed["block_bytes"]
    if not len(freed) or not _is_long(trace, stack_ids, int(freed["alloc_seq"].min()), region.first):
        return None
    phases = StackPhases(trace)
    is_copy = np.array([phases.of_stack(stack) == FORWARD for stack in stack_ids.tolist()], np.bool_)
    return AutocastMemory(site, region.stack_id, len(freed), int(sizes.sum()), int(sizes[is_copy].sum()))


def _is_long(trace: RecordedTrace, stack_ids: npt.NDArray[np.int64], first: int, end: int) -> bool:
    """Return whether events of one region span several steps or iterations."""
    steps = np.searchsorted(trace.positions.step_ends, [first, end])
    if steps[1] - steps[0] >= MIN_SPANNED:
        return True
    loops = LoopIndex(trace)
    for loop in trace.replay.loops:
        rounds = np.searchsorted(loop.begins, [first, end])
        if (
            rounds[1] - rounds[0] >= MIN_SPANNED
            and trace.stacks.is_user[loop.function]
            and not loops.is_in_pass(loop.function)
            and trace.stacks.inside(loop.function)[stack_ids].any()
        ):
            return True
    return False
