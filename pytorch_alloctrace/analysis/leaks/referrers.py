"""Referrers of the blocks of a leak: the blocks are joined by address with the recorder's object scans.

A scan records how many tensors each object of the program held, and the addresses of some of the tensors. An object's
share of a leak's blocks is the share of its addresses that belong to the leak, times its count, divided by the number
of the leak's blocks that were live at the scan. An object that holds at least half is named. If several objects
together hold at least half, all of them are named, those of outer functions first: variables of a call in the loop,
such as a batch that was sampled from a buffer, are new in each iteration.

The last scan in which an object holds the blocks counts: at the end of a run main() may have returned and freed its
locals. A scan after the judged event counts only if at least half of the bytes are still live. Garbage is named only if
no scan found another object: a cycle that main() has just left is garbage only then. The holder of each line of a leak
is found in the same way.

Where no object is named, `NoHolder` has the reason. If at least half of the blocks were live at the final scan, the
reason follows from that scan, else from the scans while the program ran.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import CompactedError
from ...reading.recorded import FinalScan, Held, RecordedTrace
from ...reading.sites import Frame, Site, StackIndex
from ...reading.table import Table
from .leak import (
    AUTOCAST,
    BACKWARD,
    CYCLES_OF_CPP,
    GRADIENT,
    GRAPHS,
    GROWING,
    SURVIVORS,
    Growth,
    HeldContainer,
    Holder,
    Leak,
    NoHolder,
    merge_leaks,
)

if TYPE_CHECKING:
    from ..evidence import DeviceEvidence, PartEvidence

MIN_SHARE = 0.5
"""Minimum share of the bytes that the named objects hold together."""
MIN_SHARE_ALONE = 0.8
"""Minimum share of the bytes of an object, for it alone to be named."""
MAX_HOLDERS = 3
MIN_SHARE_EACH = 0.15
"""Minimum share of the bytes that each of several named objects holds."""
MIN_REACHED_SHARE = 0.05
"""Minimum share of the blocks that a truncated scan has reached, for the older blocks not to count."""
_MAX_SCANS = 8
"""Maximum number of object scans examined."""
_INTERVAL_GROWTH = 4 / 3
"""Factor from the first event of an interval to that of the next: the last scan of each interval is examined."""
_MAX_CPP_SHARE = 0.05
"""Maximum share of the blocks that objects hold if C++ holds them."""
MAX_LINES = 16
"""Maximum number of lines of a leak whose holder is searched."""
_MIN_BLOCKS = 3
"""Minimum number of live blocks of a leak at a scan."""

_AUTOCAST_CACHE = "autocast's cache"

_REASONS = {
    "truncated": NoHolder.TRUNCATED,
    "graphs in use": NoHolder.GRAPHS_IN_USE,
    "unsupported": NoHolder.UNSUPPORTED,
    "unknown": NoHolder.UNKNOWN,
}
"""By `FinalScan.result`: reasons that do not depend on the blocks."""

_GRADIENT_GRAPH = re.compile(r"\bbackward\(.*\bcreate_graph\s*=(?!\s*False\b)")
"""Text of a line that gives gradients graphs."""
_DERIVED_GRADIENT = re.compile(r"\bgrad\(.*\bcreate_graph\s*=(?!\s*False\b)")
"""Text of a line that computes gradients with graphs, for a further derivative."""
_ANY_BACKWARD = re.compile(r"\bbackward\(")
_BACKWARD = re.compile(r"\bbackward\(\s*$")
"""Text of a line whose call of backward ends on a later line."""

_Growing = TypeVar("_Growing", Leak, Growth)


@dataclass(frozen=True)
class _Accused:
    """Blocks whose holder is searched."""

    stack_ids: npt.NDArray[np.int64]
    """All stacks of such blocks."""
    live_at_judged: npt.NDArray[np.int64] | None
    """Allocation events of the part's blocks that are live at the judged event; None if blocks replace others of the
    same line."""
    min_blocks: int
    blocks: int
    """Number of the blocks at the judged event."""
    bytes: int = 0
    """Allocated bytes of the blocks at the judged event; 0 if `live_at_judged` is None."""
    judged_at: int = 0


@dataclass
class _Result:
    """The holder of the blocks, or the reason why there is none."""

    holder: Holder | None = None
    garbage: Holder | None = None
    no_holder: NoHolder = NoHolder.NO_SCAN


def attach_holders(evidence: DeviceEvidence, growths: Sequence[_Growing]) -> list[_Growing]:
    """Return leaks or other growth with their holders."""
    part_of = {part.clock.judged_at: part for part in evidence.parts}
    accused = [
        _Accused(
            _list_stacks(evidence.trace.stacks, growth),
            _list_survivors(part_of[growth.judged_at]) if growth.kind == SURVIVORS else None,
            1 if growth.kind == GROWING else _MIN_BLOCKS,
            growth.blocks,
            growth.allocated_bytes,
            growth.judged_at,
        )
        for growth in growths
    ]
    results = _find_holders(evidence, accused)
    growths = [
        growth if isinstance(growth, Growth) else _attach_to_lines(evidence, growth, blocks_of, result.holder)
        for growth, blocks_of, result in zip(growths, accused, results, strict=True)
    ]
    for growth, result in zip(growths, results, strict=True):
        result.holder = _find_autocast(evidence, growth) or result.holder
    return [
        dataclasses.replace(growth, holder=result.holder, no_holder=None if result.holder else result.no_holder)
        for growth, result in zip(growths, results, strict=True)
    ]


def _attach_to_lines(evidence: DeviceEvidence, leak: Leak, accused: _Accused, holder: Holder | None) -> Leak:
    """Return the leak with the holders of its lines; `holder`: that of the leak."""
    sites = leak.sites[:MAX_LINES]
    if len(leak.sites) == 1:
        holders = [holder]
    else:
        lines = evidence.numbers.of(accused.stack_ids)
        of_lines = [
            dataclasses.replace(
                accused,
                stack_ids=accused.stack_ids[lines == evidence.numbers.of([site.stack_id])],
                blocks=site.blocks,
                bytes=site.allocated_bytes,
            )
            for site in sites
        ]
        holders = [result.holder for result in _find_holders(evidence, of_lines)]
    examined = [dataclasses.replace(site, holder=holder) for site, holder in zip(sites, holders, strict=True)]
    return dataclasses.replace(leak, sites=(*examined, *leak.sites[MAX_LINES:]))


def _find_autocast(evidence: DeviceEvidence, growth: Leak | Growth) -> Holder | None:
    """Return the cache of autocast if the end of its region, after the judged event, freed the blocks of survivors."""
    region = next((region for region in evidence.autocast_exits if region.first > growth.judged_at), None)
    if region is None or growth.kind != SURVIVORS:
        return None
    (part,) = (part for part in evidence.parts if part.clock.judged_at == growth.judged_at)
    live = part.live.take(part.live["alloc_seq"] >= part.clock.begin)
    is_of_lines = np.isin(evidence.numbers.of(live["stack_id"]), evidence.numbers.of(list(growth.stack_ids)))
    is_freed = np.isin(live["address"][is_of_lines], region.addresses)
    if not len(is_freed) or is_freed.mean() < MIN_SHARE:
        return None
    site = Site.of_stack(evidence.trace.stacks, region.stack_id)
    return Holder(
        names=(_AUTOCAST_CACHE,),
        path="cache",
        filename=site.filename,
        line=site.line,
        event=growth.judged_at + 1,
        step=None,
        share=float(is_freed.mean()),
        name=_AUTOCAST_CACHE,
        function=site.function,
        through=AUTOCAST,
        store_kind="region",
        store=Frame(site.function, site.filename, site.line, site.source),
    )


def find_holder(evidence: DeviceEvidence, stack_ids: tuple[int, ...], blocks: Table) -> Holder | None:
    """Return the object that held blocks of some stacks, or earlier or later blocks of exactly these stacks.

    These blocks are live only for a short time of the run. So the scans that found most of their addresses are
    examined, too: torch's allocators reuse addresses.
    """
    same_stacks = np.flatnonzero(np.isin(evidence.trace.stacks.same, stack_ids))
    matches: dict[int, int] = {}
    for held in evidence.trace.held:
        matches[held.event] = matches.get(held.event, 0) + int(np.isin(held.addresses, blocks["address"]).sum())
    events = [event for event in sorted(matches, key=lambda event: -matches[event])[:_MAX_SCANS] if matches[event]]
    for alloc_seqs in (blocks["alloc_seq"], None):
        accused = _Accused(same_stacks, alloc_seqs, _MIN_BLOCKS, 0 if alloc_seqs is None else len(alloc_seqs))
        (result,) = _find_holders(evidence, [accused], events)
        if result.holder is not None:
            return result.holder
    return None


def _list_stacks(stacks: StackIndex, growth: Leak | Growth) -> npt.NDArray[np.int64]:
    """Return the stacks of the growth's blocks; all stacks of its lines if the blocks replace others."""
    if growth.block_stacks:
        return np.array(growth.block_stacks, np.int64)
    if growth.kind == GROWING:  # one line below a library may allocate much else
        return np.flatnonzero(np.isin(stacks.same, stacks.same[list(growth.stack_ids)]))
    lines = stacks.package_line_numbers
    return np.flatnonzero(np.isin(lines, lines[list(growth.stack_ids)]))


def _list_survivors(part: PartEvidence) -> npt.NDArray[np.int64]:
    """Return the allocation events of the live blocks, without those of earlier parts of the run."""
    alloc_seqs: npt.NDArray[np.int64] = part.lifetimes.result["alloc_seq"]
    return alloc_seqs[alloc_seqs >= part.clock.begin]


def merge_by_holder(leaks: Sequence[Leak]) -> list[Leak]:
    """Merge the survivors that one object holds: clearing the object frees all of them."""
    groups: dict[object, list[Leak]] = {}
    for number, leak in enumerate(leaks):
        holder = leak.holder
        key: object = number
        if leak.kind == SURVIVORS and holder is not None and len(holder.names) == 1:
            key = leak.judged_at, holder.identity
        groups.setdefault(key, []).append(leak)
    return [merge_leaks(group) for group in groups.values()]


def _find_holders(
    evidence: DeviceEvidence, accused: Sequence[_Accused], more_scans: Sequence[int] = ()
) -> list[_Result]:
    """Return the result for each of `accused`. more_scans: events of scans to examine in addition."""
    if not accused or not evidence.parts:
        return [_Result() for _ in accused]
    trace = evidence.trace
    scans: dict[int, list[Held]] = {}
    for referrer in trace.held:
        if not len(referrer.addresses):  # recorded for its autograd nodes
            continue
        scans.setdefault(referrer.event, []).append(referrer)
    final = trace.final_scan
    final_event = final.event if final is not None and final.event <= trace.end_seq else -1
    # Apart from the others: main() may have freed the blocks between the last of them and the final scan.
    final_referrers = scans.pop(final_event, [])
    # Examine the final scan last for blocks that replace others: a queue may have another name once its loop has ended.
    selected = list(dict.fromkeys([*_select_scans(scans), *(event for event in more_scans if event in scans)]))
    events = [event for event in (final_event, *selected, final_event) if event > 0]
    results = [_Result(no_holder=explain_without_blocks(trace, bool(events))) for _ in accused]
    for number, event in enumerate(events):
        referrers = final_referrers if event == final_event else scans[event]
        is_before_others = event == final_event and number < len(selected)
        try:
            live = evidence.parts[0].blocks_at(event - 1)
        except CompactedError:
            continue  # the last scan of an interval only after the compaction
        step = find_step(trace, event)
        for blocks_of, result in zip(accused, results, strict=True):
            if result.holder is None and not (is_before_others and blocks_of.live_at_judged is None):
                blocks, sizes = _select_blocks(live, blocks_of)
                if len(blocks) < blocks_of.min_blocks or _is_rest(blocks_of, event, sizes):
                    continue
                garbage = [held for held in referrers if held.is_garbage]
                # Once main() has returned, no variable may lead to the blocks: an earlier scan has a better name.
                has_name = [bool(held.scope or not held.name) or not is_before_others for held in referrers]
                others = [
                    held for held, named in zip(referrers, has_name, strict=True) if named and not held.is_garbage
                ]
                has_most = 2 * len(blocks) >= blocks_of.blocks
                # Blocks may be in use for a while before they are garbage, at an early scan all of the few that exist.
                # So only an object that held most of all blocks, or more and more of them, is preferred to garbage.
                if result.garbage is None:
                    result.holder = _find_holder(trace, blocks_of, blocks, sizes, others, step)
                    if result.holder is None:
                        result.garbage = _find_holder(trace, blocks_of, blocks, sizes, garbage, step)
                else:
                    if not has_most:
                        others = [held for held in others if _has_grown(trace, held)]
                    result.holder = _find_holder(trace, blocks_of, blocks, sizes, others, step, only_reached=False)
                if not has_most:
                    continue
                if final is not None and event == final_event:
                    result.no_holder = _explain_final_scan(final, blocks, referrers)
                elif result.no_holder is NoHolder.NOT_LIVE:
                    result.no_holder = NoHolder.NOT_REACHED
        if all(result.holder for result in results):
            break
    for result in results:
        result.holder = result.holder or result.garbage
    return results


def list_garbage(trace: RecordedTrace) -> list[Held]:
    """Return the garbage that object scans found and that Python's garbage collector can free."""
    return [held for held in trace.held if held.is_garbage and held.through not in CYCLES_OF_CPP]


def _has_grown(trace: RecordedTrace, referrer: Held) -> bool:
    """Return whether an object had at most half as many blocks at an earlier scan, at the same path."""
    same = (held for held in trace.held if held.path == referrer.path and held.event < referrer.event)
    return any(0 < 2 * held.count <= referrer.count for held in same)


def explain_without_blocks(trace: RecordedTrace, has_scans: bool) -> NoHolder:
    """Return why there is no holder of blocks that were not live at a scan."""
    final = trace.final_scan
    if trace.ending.get("reason") == "converted":
        return NoHolder.CONVERTED
    if final is not None and (final.event < 0 or final.result == "unsupported") and final.result in _REASONS:
        return _REASONS[final.result]
    return NoHolder.NOT_LIVE if has_scans else NoHolder.NO_SCAN


def _explain_final_scan(final: FinalScan, blocks: npt.NDArray[np.int64], scan: Sequence[Held]) -> NoHolder:
    """Return why the final scan named no holder of blocks that were live."""
    if final.result in _REASONS:
        return _REASONS[final.result]
    block_count = sum(estimate_share(blocks, referrer)[0] for referrer in scan) + final.unlisted
    return NoHolder.CPP if block_count <= _MAX_CPP_SHARE * len(blocks) else NoHolder.MANY


def _select_scans(events: Iterable[int]) -> list[int]:
    """Return the events of the scans to examine, from the last: of eight intervals, which reach back to a tenth.

    Without the final scan.

    Compaction keeps the memory at them. The intervals are fixed, so that later scans do not change the selection.
    """
    last_of_interval = {math.floor(math.log(event + 1) / math.log(_INTERVAL_GROWTH)): event for event in sorted(events)}
    return sorted(last_of_interval.values(), reverse=True)[:_MAX_SCANS]


def find_step(trace: RecordedTrace, event: int) -> int | None:
    """Return the step that contains an event; None in the last step."""
    index = int(np.searchsorted(trace.positions.step_ends, event))
    return trace.positions.step_at(event) if index + 1 < len(trace.positions.step_ends) else None


def _is_rest(accused: _Accused, event: int, sizes: npt.NDArray[np.int64]) -> bool:
    """Return whether most of the accused bytes were freed before a scan, so that it shows the holder of a rest only."""
    return accused.live_at_judged is not None and event > accused.judged_at and 2 * int(sizes.sum()) < accused.bytes


def _select_blocks(live: Table, accused: _Accused) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return addresses and bytes of the accused blocks that were live at the scan, in the order of their allocation."""
    is_accused = np.isin(live["stack_id"], accused.stack_ids)
    if accused.live_at_judged is not None:
        is_accused &= np.isin(live["alloc_seq"], accused.live_at_judged)
    rows = np.flatnonzero(is_accused)
    rows = rows[np.argsort(live["alloc_seq"][rows])]
    return live["address"][rows], live["block_bytes"][rows]


def estimate_share(
    blocks: npt.NDArray[np.int64],
    referrer: Held,
    sizes: npt.NDArray[np.int64] | None = None,
    only_reached: bool = True,
) -> tuple[float, float]:
    """Return how many of the blocks, or of their bytes (`sizes`), an object holds, and their share.

    The addresses are a sample: both are estimates.

    A scan that ran out of time has followed a graph from its newest nodes to older ones. With `only_reached`, the
    blocks before those that the scan has reached do not count.
    """
    is_held = np.isin(blocks, referrer.addresses)
    matches = int(is_held.sum())
    if not matches:
        return 0.0, 0.0
    sizes = np.ones(len(blocks), np.int64) if sizes is None else sizes
    reached = len(blocks)
    if only_reached and referrer.through in GRAPHS and not referrer.has_all_nodes:
        newer = len(blocks) - int(is_held.argmax())
        reached = newer if newer >= MIN_REACHED_SHARE * len(blocks) else reached
    amount = float(sizes[is_held].sum()) / len(referrer.addresses) * referrer.count
    return amount, min(1.0, amount / max(int(sizes[-reached:].sum()), 1))


def _find_holder(
    trace: RecordedTrace,
    accused: _Accused,
    blocks: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    scan: Sequence[Held],
    step: int | None,
    only_reached: bool = True,
) -> Holder | None:
    estimates = [(*estimate_share(blocks, referrer, sizes, only_reached), referrer) for referrer in scan]
    estimates = [estimate for estimate in estimates if estimate[1] >= MIN_SHARE_EACH]
    estimates.sort(key=lambda estimate: -estimate[0])
    if not estimates:
        return None
    largest = estimates[: 1 if estimates[0][1] >= MIN_SHARE_ALONE else MAX_HOLDERS]
    total_share = min(1.0, sum(share for _, share, _ in largest))
    if total_share < MIN_SHARE:
        return None
    referrers = [largest_referrer for *_, largest_referrer in largest]
    if len(referrers) > 1:
        functions = _list_functions(trace, accused.stack_ids)
        referrers.sort(key=lambda referrer: functions.get((referrer.filename, referrer.function), 0))
    return make_holder(trace, referrers, step, total_share)


def _list_functions(trace: RecordedTrace, stack_ids: npt.NDArray[np.int64]) -> dict[tuple[str, str], int]:
    """Return the depth of each function that is on the first of the stacks; 0: the outermost."""
    stack = next((stack for stack in stack_ids.tolist() if trace.stacks.has_frames(stack)), None)
    frames = [] if stack is None else trace.stacks.frames(stack)
    return {(frame.filename, frame.function): depth for depth, frame in enumerate(reversed(frames))}


def make_holder(trace: RecordedTrace, referrers: Sequence[Held], step: int | None, share: float) -> Holder:
    """Return a holder of the objects of a scan, with the details of the first object."""
    referrer = referrers[0]
    backward = find_gradient_graph(trace, is_certain=True) if referrer.through == GRADIENT else None
    return Holder(
        names=tuple(other.holder for other in referrers),
        path=referrer.path,
        filename=referrer.filename,
        line=referrer.line,
        event=referrer.event,
        step=step,
        share=share,
        name=referrer.name,
        scope=referrer.scope,
        function=referrer.function,
        through=referrer.through,
        containers=tuple(
            HeldContainer(**(container | {"bound": container["bound"] or None})) for container in referrer.containers
        ),
        store_kind=referrer.store[0] if backward is None else BACKWARD,
        store=_read_store(trace, referrer) if backward is None else backward,
        # A corrupt trace may have less memory than tensors.
        tensor_share=min(referrer.tensor_bytes / max(referrer.bytes, 1), 1.0) if referrer.tensor_bytes else 1.0,
        back_reference=referrer.back_reference,
    )


def find_gradient_graph(trace: RecordedTrace, is_certain: bool = False) -> Frame | None:
    """Return the first line of user code that calls `backward(create_graph=True)`, None if no stack contains one.

    `is_certain`: there was such a call; its arguments may be on the lines below.
    """
    return _find_user_line(trace, (_GRADIENT_GRAPH, _BACKWARD)[: 2 if is_certain else 1])


def find_derived_gradient(trace: RecordedTrace, beside_backward: bool = False) -> Frame | None:
    """Return the first line of user code that calls `torch.autograd.grad(create_graph=True)`.

    Returns None if there is none or, without `beside_backward`, if a line calls `backward()`: it may take the further
    derivative.
    """
    if not beside_backward and _find_user_line(trace, (_ANY_BACKWARD,)):
        return None
    return _find_user_line(trace, (_DERIVED_GRADIENT,))


def _find_user_line(trace: RecordedTrace, texts: Sequence[re.Pattern[str]]) -> Frame | None:
    stacks = trace.stacks
    first_stacks = np.unique(stacks.line_numbers, return_index=True)[1]
    frames = [stacks.frame(stack) for stack in first_stacks[stacks.is_user[first_stacks]].tolist()]
    return next((frame for text in texts for frame in frames if text.search(frame.source or "")), None)


def _read_store(trace: RecordedTrace, referrer: Held) -> Frame | None:
    _, filename, function, line = referrer.store
    return Frame(function, filename, line, trace.stacks.find_source(filename, line)) if line else None
