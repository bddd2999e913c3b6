"""Accumulation: memory of many steps that is held at the peak and then released at once, as at the end of an epoch.

It is no leak, but it makes the peak. Lines accumulate if the blocks that they hold at the peak were allocated in at
least `MIN_UNITS` steps or iterations, at least `MIN_FREED_SHARE` of them are freed before leaks are judged, and
together the lines hold `MIN_SHARE` of the peak. The frees are spread over a much shorter time than the allocations: a
sliding window, such as a full queue, frees its blocks one after the other.

Within a step or after the last, as in an evaluation, the iterations of a loop count that the stacks show, if it is not
one pass over a model. A loop of a library counts if it calls user code. Blocks that backward frees are activations,
which accumulate by design; a model, its gradients and its optimizer state do not count. The program may then join the
parts: a block that is exactly as large as all parts of a stack, and younger, holds as much again. A buffer also
accumulates that is joined from its predecessor and a part of equal size in each iteration (`parts = torch.cat((parts,
part))`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ... import _replay
from ...errors import CompactedError
from ...reading.names import KINDS, ROLES
from ...reading.positions import Range
from ...reading.recorded import FREES
from ...reading.replay import Peak
from ...reading.sites import Frame, Site, StackIndex, bytes_by_stack
from ...reading.table import Table
from ..free_memory.forwards import have_nodes
from ..free_memory.unused_graph import find_peak_without
from .call_paths import CallTree, find_line_to_inspect
from .doubts import MIN_ARRIVALS
from .leak import SURVIVORS, Doubt, Growth
from .lifetimes import LifetimeEvidence
from .loops import LoopIndex
from .referrers import find_holder

if TYPE_CHECKING:
    from ..evidence import DeviceEvidence, PartEvidence

MIN_UNITS = 6
"""Minimum number of steps or iterations. Less than for a leak: what accumulates holds `MIN_SHARE` of the peak."""
MIN_SHARE, MIN_LOOP_SHARE = 0.25, 0.2
"""Minimum share of the peak; in a loop, without the blocks of its first and last iteration."""
MIN_FREED_SHARE = 0.3
MAX_FREE_SPREAD = 0.25
"""Maximum ratio of the time in which the middle 80 % of the blocks are freed to that in which they are allocated."""
MAX_BACKWARD_SHARE = 0.3
"""Maximum share of the blocks that backward frees."""
MIN_EQUAL_SHARE = 0.8
"""Minimum share of the parts of equal size that are joined to a buffer."""
MIN_INNER_SHARE = 0.1
"""Minimum share of further bytes for an inner loop to be reported instead of an outer loop."""
MIN_JOINED_GROWTH = 4
MIN_JOINED_SHARE = 0.1
"""Minimum share of the peak for a joined buffer that is a part of what accumulates in a loop."""
MIN_GRAPH_SHARE = 0.5
_MIDDLE = (10, 90)
_MAX_EVENTS = 1 << 16
"""Number of events searched after the peak for the frees, and before the peak for the predecessors of a buffer."""
_ALLOC = KINDS.index("alloc")
_MODEL = [ROLES.index(role) for role in ("parameter", "buffer", "gradient", "optimizer state")]


def find_accumulation(part: PartEvidence, lifetimes: LifetimeEvidence, loops: LoopIndex) -> Growth | None:
    """Return the accumulation at the peak of a device; None if there is none, or if the peak is not in this part."""
    device, clock = part.device, part.clock
    peak = device.trace.replay.peak("allocated", device.device)
    if peak is None or device.at_peak is None or device.at_peak.is_compacted or not clock.is_discrete:
        return None
    later_parts = (other.clock.begin for other in device.parts if other.clock.is_discrete)
    end = min((begin for begin in later_parts if begin > clock.begin), default=device.trace.end_seq)
    if not clock.begin <= peak.seq < end:
        return None
    live = device.at_peak.result
    is_recorded = ~live["older"] & (live["alloc_seq"] >= clock.begin)
    is_kept = np.isin(live["alloc_seq"], part.lifetimes.result["alloc_seq"])
    lines, units = device.numbers.of(live["stack_id"]), clock.units_at(live["alloc_seq"])
    is_old = is_recorded & (units < clock.units_at([peak.seq])[0])
    rows = np.zeros(len(live), np.bool_)
    for line in np.unique(lines[is_old & ~is_kept]).tolist():
        is_of_line = is_old & (lines == line)
        if (
            len(np.unique(units[is_of_line])) >= MIN_UNITS
            and is_kept[is_of_line].mean() <= 1 - MIN_FREED_SHARE
            and _are_freed_together(lifetimes, line, units[is_of_line], peak.seq)
        ):
            rows |= is_of_line
    min_bytes = max(MIN_SHARE * peak.bytes, 1)
    if int(live["block_bytes"][rows].sum()) >= min_bytes:
        rows = _exclude_models(part, live, rows, peak)
    if int(live["block_bytes"][rows].sum()) >= min_bytes and len(np.unique(units[rows])) >= MIN_UNITS:
        steps = clock.first_step + units[rows]
        return _build_growth(part, live, rows, peak, clock.unit, len(np.unique(steps)), round(clock.length) + 1, steps)
    is_of_step = is_recorded & ~is_kept & (units == clock.units_at([peak.seq])[0])
    in_loop = _find_in_loop(part, loops, live, is_of_step, peak, max(MIN_LOOP_SHARE * peak.bytes, 1))
    joined = _find_joined(part, live, is_of_step, peak, min_bytes if in_loop is None else MIN_JOINED_SHARE * peak.bytes)
    if in_loop is None:
        return joined
    rows, rounds, loop = in_loop
    rows, join = _find_parts(part, live, rows, is_of_step, peak)
    count, call = len(np.unique(rounds[rows])) * loop.stride, _find_call(device.trace.stacks, live, rows, loop)
    growth = _build_growth(part, live, rows, peak, "iteration", count, loop.rounds, rounds[rows] * loop.stride, call)
    if joined is not None:
        return dataclasses.replace(growth, site=joined.site, is_joined=True)
    stacks, join_bytes = device.trace.stacks, int(join["block_bytes"].sum())
    is_part = np.isin(stacks.same, [*growth.stack_ids, *stacks.same[join["stack_id"]].tolist()])
    nodes = device.trace.replay.nodes_created
    is_training = ~is_part & (np.arange(len(is_part)) < len(nodes))
    is_training[is_training] = nodes[np.flatnonzero(is_training)] > 0
    size = growth.allocated_bytes + join_bytes
    other_peak = find_peak_without(device.trace, device.device, is_part, is_training, size)
    return dataclasses.replace(
        growth,
        join=Site.of_stack(stacks, int(join["stack_id"][0])) if len(join) else None,
        join_bytes=join_bytes,
        other_peak_bytes=max(other_peak, peak.bytes - size) if other_peak else 0,
    )


def _find_in_loop(
    part: PartEvidence,
    loops: LoopIndex,
    live: Table,
    is_freed: npt.NDArray[np.bool_],
    peak: Peak,
    min_bytes: float,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], _replay.Loop] | None:
    """Return the blocks that iterations of a loop hold together, the iteration of each live block, and the loop."""
    stacks = part.device.trace.stacks
    best: tuple[int, npt.NDArray[np.bool_], npt.NDArray[np.int64], _replay.Loop] | None = None
    for loop in sorted(
        part.device.trace.replay.loops, key=lambda loop: (not stacks.is_user[loop.function], loop.depth)
    ):
        if loop.rounds < MIN_UNITS or loops.is_in_pass(loop.function):
            continue
        begins = loop.begins.astype(np.int64)
        rounds = np.searchsorted(begins, live["alloc_seq"], side="right")
        is_old = is_freed & (rounds > 0) & (rounds < int(np.searchsorted(begins, peak.seq, side="right")))
        if int(live["block_bytes"][is_old].sum()) < min_bytes:
            continue
        is_old &= stacks.inside(loop.function)[stacks.site[live["stack_id"]]]
        total = int(live["block_bytes"][is_old].sum())
        if total < min_bytes or len(np.unique(rounds[is_old])) * loop.stride < MIN_UNITS:
            continue
        if best is None or total > (1 + MIN_INNER_SHARE) * best[0]:
            best = total, is_old, rounds, loop
    if best is None:
        return None
    _, rows, rounds, loop = best
    rows = _exclude_models(part, live, rows, peak)
    if int(live["block_bytes"][rows].sum()) < min_bytes or len(np.unique(rounds[rows])) * loop.stride < MIN_UNITS:
        return None
    addresses = _read_blocks(part, live, rows, peak)["address"]
    return (rows, rounds, loop) if _are_released_by_program(part, addresses, peak.seq) else None


def _read_blocks(part: PartEvidence, live: Table, rows: npt.NDArray[np.bool_], peak: Peak) -> Table:
    """Return `Replay.live` of blocks at the peak."""
    blocks = part.blocks_at(peak.seq)
    return blocks.take(np.isin(blocks["alloc_seq"], live["alloc_seq"][rows]))


def _exclude_models(part: PartEvidence, live: Table, rows: npt.NDArray[np.bool_], peak: Peak) -> npt.NDArray[np.bool_]:
    """Return the rows without parameters, buffers, gradients and optimizer state."""
    blocks = _read_blocks(part, live, rows, peak)
    return rows & np.isin(live["alloc_seq"], blocks["alloc_seq"][~np.isin(blocks["role"], _MODEL)])


def _find_parts(
    part: PartEvidence, live: Table, rows: npt.NDArray[np.bool_], is_of_step: npt.NDArray[np.bool_], peak: Peak
) -> tuple[npt.NDArray[np.bool_], Table]:
    """Return the rows that accumulate, with those of the first and last iteration if joined, and the joined blocks.

    Without a join, the blocks of the last iteration may be its temporaries.
    """
    same = part.device.trace.stacks.same
    blocks = _read_blocks(part, live, is_of_step, peak)
    stacks, sizes, alloc_seqs = same[blocks["stack_id"]], blocks["requested_bytes"], blocks["alloc_seq"]
    is_part, is_join = np.isin(alloc_seqs, live["alloc_seq"][rows]), np.zeros(len(blocks), np.bool_)
    for stack in np.unique(stacks[is_part]).tolist():
        is_of_stack = stacks == stack
        # A single block is as large as any temporary of the same shape.
        if is_of_stack.sum() < MIN_UNITS or (
            int(blocks["block_bytes"][is_of_stack].sum()) < MIN_JOINED_SHARE * peak.bytes
        ):
            continue
        is_match = (alloc_seqs > alloc_seqs[is_of_stack].max()) & (sizes == sizes[is_of_stack].sum()) & ~is_join
        if is_match.any():
            is_part |= is_of_stack
            is_join[np.flatnonzero(is_match)[0]] = True
    return np.isin(live["alloc_seq"], alloc_seqs[is_part]), blocks.take(is_join)


def _find_call(stacks: StackIndex, live: Table, rows: npt.NDArray[np.bool_], loop: _replay.Loop) -> Frame:
    """Return the function that iterates, at the line through which it allocated most of the blocks.

    The line is 0 if there is no such line, or if the function belongs to a library.
    """
    bytes_by_line: dict[Frame, int] = {}
    call = stacks.call(loop.function)
    for stack, size in bytes_by_stack(live["stack_id"][rows], live["block_bytes"][rows]).items():
        node = stack
        while stacks.has_frames(node) and stacks.call(node) != call:
            node = int(stacks.parent[node])
        frame = stacks.frame(node if stacks.has_frames(node) else loop.function)
        bytes_by_line[frame] = bytes_by_line.get(frame, 0) + size
    frame = max(bytes_by_line, key=bytes_by_line.__getitem__)
    is_line = stacks.is_user[loop.function] and 2 * bytes_by_line[frame] > sum(bytes_by_line.values())
    return frame if is_line else dataclasses.replace(frame, line=0, source=None)


def _are_released_by_program(part: PartEvidence, addresses: npt.NDArray[np.int64], peak_seq: int) -> bool:
    """Return whether most of the blocks are freed soon after the peak, at once, and not by backward."""
    frees: dict[int, tuple[int, int]] = {}
    later_allocations: list[int] = []
    for events in _read_events(part.device, Range(peak_seq + 1, peak_seq + 1 + _MAX_EVENTS), ["alloc", *FREES]):
        is_allocation = events["kind"] == _ALLOC
        later_allocations += events["seq"][is_allocation].tolist()
        is_match = ~is_allocation & np.isin(events["address"], addresses)
        for address, *free in zip(
            *(events[name][is_match].tolist() for name in ("address", "seq", "node_type")), strict=True
        ):
            frees.setdefault(address, (free[0], free[1]))  # later frees are of other blocks
    if 2 * len(frees) < max(len(addresses), 1):
        return False
    freed_at, nodes = np.array(list(frees.values()), np.int64).T
    first, last = np.searchsorted(later_allocations, np.percentile(freed_at, _MIDDLE))
    return last - first <= MAX_FREE_SPREAD * len(frees) and float((nodes != 0).mean()) <= MAX_BACKWARD_SHARE


def _find_joined(
    part: PartEvidence, live: Table, is_freed: npt.NDArray[np.bool_], peak: Peak, min_bytes: float
) -> Growth | None:
    """Return the largest buffer at the peak if it was joined, again and again, from its predecessor and a new part."""
    device = part.device
    if not is_freed.any():
        return None
    row = int(np.where(is_freed, live["block_bytes"], 0).argmax())
    lines = device.numbers.of(live["stack_id"])
    rows = is_freed & (lines == lines[row])
    if int(live["block_bytes"][rows].sum()) < min_bytes:
        return None
    sizes: list[int] = []
    first = max(peak.seq - _MAX_EVENTS, part.clock.begin)
    for events in _read_events(device, Range(first, peak.seq + 1), ["alloc"]):
        is_of_line = device.numbers.of(events["stack_id"]) == lines[row]
        sizes += events["requested_bytes"][is_of_line].tolist()
    added = np.diff(np.array(sizes, np.int64))
    resets = np.flatnonzero(added <= 0)
    added = added[resets[-1] + 1 if len(resets) else 0 :]
    if len(added) < MIN_ARRIVALS or (added == np.median(added)).mean() < MIN_EQUAL_SHARE:
        return None
    if sizes[-1] < MIN_JOINED_GROWTH * sizes[-1 - len(added)]:
        return None
    call = device.trace.stacks.frame(int(live["stack_id"][row]))
    times = np.array([0.0, float(len(added))])
    growth = _build_growth(part, live, rows, peak, "iteration", len(added) + 1, len(added) + 1, times, call)
    return dataclasses.replace(growth, site=Site.of_stack(device.trace.stacks, growth.stack_ids[0]), is_joined=True)


def _read_events(
    device: DeviceEvidence, within: Range, kinds: Sequence[str], with_state: bool = False
) -> Iterator[Table]:
    """Yield events of a device; nothing if they are compacted."""
    trace, until = device.trace, min(within.end, device.trace.end_seq)
    try:
        for events in trace.iter_events(Range(within.first, until), kinds, with_state=with_state):
            yield events.take(trace.devices_of(events) == device.device)
    except CompactedError:
        return


def _build_growth(
    part: PartEvidence,
    live: Table,
    rows: npt.NDArray[np.bool_],
    peak: Peak,
    unit: str,
    arrivals: int,
    units: int,
    times: npt.NDArray[np.float64] | npt.NDArray[np.int64],
    call: Frame | None = None,
) -> Growth:
    device = part.device
    index = device.trace.stacks
    stacks, stack_of_row = np.unique(index.same[live["stack_id"][rows]], return_inverse=True)
    stack_bytes = np.zeros(len(stacks), np.int64)
    np.add.at(stack_bytes, stack_of_row, live["block_bytes"][rows])
    tree = CallTree(index, dict(zip(stacks.tolist(), stack_bytes.tolist(), strict=True)))
    stack_ids = tuple(stacks[np.argsort(-stack_bytes, kind="stable")].tolist())
    nodes_created = device.trace.replay.nodes_created
    counted = live["stack_id"][rows]
    counted = counted[counted < len(nodes_created)]
    has_graph = bool((nodes_created[counted] > 0).mean() >= MIN_GRAPH_SHARE) if len(counted) else False
    is_trained = False
    if has_graph:  # these lines may create nodes in training alone
        begin = max(peak.seq - _MAX_EVENTS, part.clock.begin)
        first, nodes = int(live["alloc_seq"][rows].min()), [np.zeros(0, np.int64)]
        for events in _read_events(device, Range(begin, peak.seq + 1), ["alloc"], with_state=True):
            nodes.append(events["autograd_seq"][np.isin(events["seq"], live["alloc_seq"][rows])])
            is_backward = (events["node_type"] != 0) & (events["seq"] > first)
            is_trained |= bool(np.isin(events["forward_stack_id"][is_backward], counted).any())
        has_graph = have_nodes(np.concatenate(nodes))
    return Growth(
        doubt=Doubt.ACCUMULATED,
        site=find_line_to_inspect(tree) or Site.of_stack(index, stack_ids[0]),
        stack_ids=stack_ids,
        kind=SURVIVORS,
        device=device.device,
        unit=unit,
        judged_at=peak.seq,
        allocated_bytes=int(live["block_bytes"][rows].sum()),
        blocks=int(rows.sum()),
        arrivals=arrivals,
        units=units,
        first=float(times.min()),
        last=float(times.max()),
        holder=find_holder(device, stack_ids, _read_blocks(part, live, rows, peak)),
        call=call,
        peak_bytes=peak.bytes,
        has_graph=has_graph,
        is_trained=has_graph and is_trained,
    )


def _are_freed_together(lifetimes: LifetimeEvidence, line: int, units: npt.NDArray[np.float64], peak_seq: int) -> bool:
    """Return whether the blocks of a line that are live at the peak are freed in a short time."""
    freed = lifetimes.freed_blocks
    rows = freed.rows_of_site.get(line)
    if rows is None:
        return False
    peak_cell = lifetimes.first_cell + int(np.searchsorted(lifetimes.borders, peak_seq, side="right")) - 1
    rows = rows[(freed.alloc_cell[rows] <= peak_cell) & (freed.free_cell[rows] >= peak_cell)]
    if not len(rows):
        return False
    free_times = np.repeat(freed.cell_times[freed.free_cell[rows]], freed.counts[rows])
    freed_in, allocated_in = (float(np.ptp(np.percentile(times, _MIDDLE))) for times in (free_times, units))
    return freed_in <= MAX_FREE_SPREAD * allocated_in
