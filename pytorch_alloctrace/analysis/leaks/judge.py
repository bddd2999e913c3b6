"""Definition of a leak.

Growth is no proof of a leak: a cache may fill up, inputs may get longer, garbage may be collected late. A verdict
follows from the lifetimes of a line's blocks, in units of the program's work (see `clock`), up to the last unit. The
end of the trace does not count: the program frees its memory there.

survivors (see `survivors`)        from some age on, the blocks of a line are no longer freed, and more keep coming
backlog (see `backlog`)            each block of a line is freed, but more and more are live at once
growing (see `growing_buffers`)    a block of a line is replaced again and again by a larger block until the end

A line is one of user code. If it calls a package other than torch (`trainer.train()`), it is judged for each line of
the package by itself: the blocks of one do not hide those of another.

Growth of these kinds may have another reading (see `doubts`). What is then not called a leak, and lines that hold more
and more but fit none of the three, are undecided growth with a reason, or a note where the growth is known to end.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ..allocation_share import AllocationShare
from ..evidence import DeviceEvidence, PartEvidence, collect_evidence
from ..free_memory.failed_allocations import find_failed_allocations
from .accumulation import find_accumulation
from .backlog import find_backlogs
from .doubts import LARGE_SHARE, DoubtFinder
from .filled import find_filled_lines
from .forecast import estimate_free_bytes
from .garbage_collections import Collection, count_collected, list_collections
from .growing_buffers import find_growing_leaks, find_possible_buffers
from .leak import (
    GROWING,
    MINOR_BYTES,
    SURVIVORS,
    Doubt,
    Growth,
    Leak,
    LeakingSite,
    LeakVerdict,
    NoHolder,
)
from .lifetimes import LifetimeEvidence
from .loops import LoopIndex
from .referrers import attach_holders, find_gradient_graph, list_garbage, merge_by_holder
from .survivor_leaks import LeakBuilder
from .survivors import JudgedLine, LineStatus, judge_lines

__all__ = ["Leak", "LeakVerdict", "LeakingSite", "find_leaks", "judge_leaks"]

MIN_UNDECIDED_SHARE = 0.05
"""Minimum growth that fits no kind of leak, or is a note, to report: as a share of the peak."""
RECENT_SHARE = 0.5
"""Share of the run after which a line must allocate repeatedly for its few blocks to be undecided."""
MIN_UNCOMPACTED_UNITS = 24
"""Minimum number of uncompacted units to distinguish a growing buffer from longer inputs."""
MIN_COLLECTED_SHARE = 0.25
"""Minimum number of blocks of a line that collections freed, as a share of those that it leaks, to be no leak."""
BEGINNING_SHARE = 0.25
"""Share of the run, from its beginning, whose allocated blocks are no evidence of growth."""


def find_leaks(trace: RecordedTrace, device: str, within: Range | None = None) -> LeakVerdict:
    """Judge one device of a trace, over the whole run or the complete steps of a range."""
    return judge_leaks(collect_evidence(trace, device, within))


def judge_leaks(evidence: DeviceEvidence) -> LeakVerdict:
    """Judge one device. Needs memory in proportion to live blocks and stacks."""
    first_clock = evidence.clocks[0]
    peak = evidence.trace.replay.peak("allocated", evidence.device)
    peak_bytes = 0 if peak is None else peak.bytes
    loops = LoopIndex(evidence.trace)
    leaks: list[Leak] = []
    growths: list[Growth] = []
    for part in evidence.parts:
        part_leaks, part_growths = _judge_part(part, loops)
        lines = _list_lines(leaks)
        # A line that other functions call may fill a cache in one part, and leak in another.
        stacks = {stack for growth in growths if growth.is_judged for stack in growth.stack_ids}
        leaks += [leak for leak in part_leaks if not _list_lines([leak]) & lines and stacks.isdisjoint(leak.stack_ids)]
        growths += part_growths
    leaks, collected = _split_collected(evidence, leaks)
    lines = _list_lines(leaks)
    growths = sorted(
        (growth for growth in growths if not _list_lines([growth]) & lines), key=lambda growth: -growth.allocated_bytes
    )
    growths = [*collected, *_note_garbage(evidence, growths)]
    undecided, notes = _select_growth(growths, max(MIN_UNDECIDED_SHARE * peak_bytes, 1))
    notes = _omit_repetitions(evidence, notes)
    is_one_pass = False
    if not first_clock.is_discrete and not leaks:
        # Growth is no evidence without a loop, unless it shows on another clock.
        is_one_pass = any(growth.unit == "second" for growth in undecided)
        undecided = [growth for growth in undecided if growth.unit != "second"]
        notes = [growth for growth in notes if growth.unit != "second"]
    return LeakVerdict(
        judged=not first_clock.is_too_short and not is_one_pass,
        is_one_pass=is_one_pass,
        unit=first_clock.unit,
        units=int(first_clock.length) + (1 if first_clock.is_discrete else 0),
        loop=first_clock.loop,
        leaks=tuple(
            sorted(
                (_complete_leak(leak, evidence.trace, peak_bytes) for leak in leaks),
                key=lambda leak: leak.weight,
                reverse=True,
            )
        ),
        undecided=tuple(_attach_missing_holders(evidence, undecided)),
        notes=tuple(_note_garbage(evidence, _attach_missing_holders(evidence, notes))),
    )


def _split_collected(evidence: DeviceEvidence, leaks: Sequence[Leak]) -> tuple[list[Leak], list[Growth]]:
    """Return the leaks, and as growth those that are garbage of which collections freed a part in this run.

    Garbage that no collection frees, as while the collector is disabled, is a leak.
    """
    trace, clock = evidence.trace, evidence.clocks[0]
    garbage = {(held.event, held.holder) for held in list_garbage(trace)}
    collected = []
    collections: list[Collection] | None = None
    for leak in leaks:
        if leak.holder is None or (leak.holder.event, leak.holder.names[0]) not in garbage:
            continue
        collections = list_collections(trace) if collections is None else collections
        earlier = [collection for collection in collections if collection[1] <= leak.judged_at]
        freed = count_collected(trace, leak.device, leak.stack_ids, earlier)
        if freed >= MIN_COLLECTED_SHARE * leak.blocks:
            units = round(clock.length) + 1
            collected.append((leak, Growth.of_leak(leak, Doubt.GARBAGE, units, clock.first_step + clock.length)))
    garbage_leaks = [leak for leak, _ in collected]
    return [leak for leak in leaks if leak not in garbage_leaks], [growth for _, growth in collected]


def _note_garbage(evidence: DeviceEvidence, growths: Sequence[Growth]) -> list[Growth]:
    """Return the growth; what an object scan found to be garbage that the collector can free is noted as such."""
    garbage = {(held.event, held.holder) for held in list_garbage(evidence.trace)}

    def is_garbage(growth: Growth) -> bool:
        is_undecided = not growth.is_note or growth.doubt in (Doubt.FILLED, Doubt.STOPPED)
        holder = growth.holder
        return is_undecided and holder is not None and (holder.event, holder.names[0]) in garbage

    return [dataclasses.replace(growth, doubt=Doubt.GARBAGE) if is_garbage(growth) else growth for growth in growths]


def _complete_leak(leak: Leak, trace: RecordedTrace, peak_bytes: int) -> Leak:
    # A complete scan finds such gradients.
    is_complete = leak.no_holder in (NoHolder.CPP, NoHolder.MANY)
    may_be_gradient = leak.kind == SURVIVORS and leak.holder is None and not is_complete
    gradient_graph = find_gradient_graph(trace) if may_be_gradient else None
    return dataclasses.replace(leak, minor=leak.is_minor(peak_bytes), gradient_graph=gradient_graph)


def _select_growth(growths: Sequence[Growth], min_bytes: float) -> tuple[list[Growth], list[Growth]]:
    """Return the undecided growth and the notes to report, without small growth that has no lifetimes of a leak."""
    notes, undecided = [], []
    unclear_bytes = sum(growth.allocated_bytes for growth in growths if not growth.is_judged and not growth.is_note)
    for growth in growths:
        # A few arrivals that make up much of the peak may be the beginning of a leak, unless they are models.
        is_large = growth.doubt is Doubt.RARE and not growth.is_model and growth.allocated_bytes >= min_bytes
        if growth.is_note and not is_large:
            if growth.allocated_bytes >= (MINOR_BYTES if growth.is_judged else min_bytes):
                notes.append(growth)
        elif growth.is_judged or growth.doubt is Doubt.COMPACTED or unclear_bytes >= min_bytes:
            undecided.append(growth)
    return undecided, notes


def _omit_repetitions(evidence: DeviceEvidence, notes: Sequence[Growth]) -> list[Growth]:
    """Return the notes without lines that stopped growing and whose blocks a note on accumulation counts."""
    lines_of = [set(evidence.numbers.of(list(growth.stack_ids)).tolist()) for growth in notes]
    accumulations = [
        (growth.allocated_bytes, lines)
        for growth, lines in zip(notes, lines_of, strict=True)
        if growth.doubt is Doubt.ACCUMULATED
    ]
    return [
        growth
        for growth, lines in zip(notes, lines_of, strict=True)
        if growth.doubt is not Doubt.STOPPED
        or not any(growth.allocated_bytes <= size and lines <= others for size, others in accumulations)
    ]


def _attach_missing_holders(evidence: DeviceEvidence, growths: Sequence[Growth]) -> list[Growth]:
    """Return the growth with the holders of lines that were not examined as leaks."""
    is_missing = [not growth.is_judged and growth.doubt not in (Doubt.ACCUMULATED, Doubt.GARBAGE) for growth in growths]
    attached = iter(attach_holders(evidence, list(itertools.compress(growths, is_missing))))
    return [next(attached) if missing else growth for growth, missing in zip(growths, is_missing, strict=True)]


def _judge_part(part: PartEvidence, loops: LoopIndex) -> tuple[list[Leak], list[Growth]]:
    """Return the leaks and the other growth of a part of the run; those with the lifetimes of a leak with holders."""
    trace, device, numbers = part.device.trace, part.device.device, part.device.numbers
    lifetimes = LifetimeEvidence.collect(trace, device, part.clock, numbers, part.lifetimes.result, part.stacks.result)
    free_bytes = estimate_free_bytes(trace, device, part.clock, lifetimes.judged_ns, lifetimes.live_bytes)
    builder = LeakBuilder(trace, lifetimes, free_bytes, loops, part.device.live_at_end.result)
    judged = judge_lines(lifetimes)
    leaks = builder.build_survivor_leaks([line for line in judged if line.status is LineStatus.LEAKING])
    lines = _list_lines(leaks)
    at_border = None if part.at_border.is_compacted else part.at_border.result
    other_leaks = [
        builder.build_backlog_leak(backlog)
        for backlog in find_backlogs(lifetimes, at_border, _map_functions(trace, lifetimes))
    ]
    other_leaks += find_growing_leaks(part, free_bytes)
    for leak in other_leaks:
        if not _list_lines([leak]) & lines:
            leaks.append(leak)
            lines |= _list_lines([leak])
    doubts = DoubtFinder(part, loops, free_bytes, trace.device_bytes(device), lifetimes.is_loading)
    other_growth = [
        growth
        for growth in (*_list_possible_buffers(part), *_list_unclear_lines(trace, lifetimes, judged))
        if growth.allocated_bytes and not _list_lines([growth]) & lines
    ]
    remaining = doubts.omit_replacements(doubts.omit_repetitions([*leaks, *other_growth]))
    other_growth = [growth for growth in remaining if isinstance(growth, Growth)]
    leaks = merge_by_holder(attach_holders(part.device, [leak for leak in remaining if isinstance(leak, Leak)]))
    lines = _list_lines(leaks)
    examined = doubts.doubt_leaks_of_rounds([doubts.examine(leak) for leak in leaks])
    accumulation = find_accumulation(part, lifetimes, loops)
    if accumulation is not None and not _list_lines([accumulation]) & lines:
        other_growth.append(accumulation)
    lines |= _list_lines(other_growth)
    other_growth += [growth for growth in find_filled_lines(trace, lifetimes) if not _list_lines([growth]) & lines]
    return (
        [leak for leak in examined if isinstance(leak, Leak)],
        [growth for growth in examined if isinstance(growth, Growth)] + other_growth,
    )


def _list_possible_buffers(part: PartEvidence) -> list[Growth]:
    if part.uncompacted is part.clock or (part.windows is not None and part.windows.units >= MIN_UNCOMPACTED_UNITS):
        return []
    return [
        Growth(
            doubt=Doubt.COMPACTED,
            site=Site.of_stack(part.device.trace.stacks, stack),
            stack_ids=(stack,),
            kind=GROWING,
            device=part.device.device,
            unit=part.clock.unit,
            judged_at=part.clock.judged_at,
            allocated_bytes=size,
            blocks=1,
            arrivals=1,
            units=round(part.clock.length) + 1,
            first=0.0,
            last=part.clock.length,
        )
        for stack, size in find_possible_buffers(part)
    ]


def _map_functions(trace: RecordedTrace, lifetimes: LifetimeEvidence) -> dict[int, tuple[object, ...]]:
    stacks, freed_blocks, survivors = trace.stacks, lifetimes.freed_blocks, lifetimes.survivors
    first_stacks = {site: int(freed_blocks.stack[rows[0]]) for site, rows in freed_blocks.rows_of_site.items()}
    first_stacks |= {site: int(survivors.stack[rows[0]]) for site, rows in survivors.rows_of_site.items()}
    return {
        site: stacks.call(int(stacks.opened[stack]) or stacks.representative(stack))[1:]
        if stacks.has_frames(stack)
        else (site,)
        for site, stack in sorted(first_stacks.items())
    }


_MAX_INTERVALS = 2
"""Maximum time between the last block of a line and the failed allocation that stopped it, in those between blocks."""


def _list_unclear_lines(trace: RecordedTrace, lifetimes: LifetimeEvidence, lines: Sequence[JudgedLine]) -> list[Growth]:
    """Return the growth of lines that kept blocks but fit no kind of leak."""
    doubts = {
        LineStatus.LATE: Doubt.LATE,
        LineStatus.BURSTS: Doubt.BURSTS,
        LineStatus.STOPPED: Doubt.STOPPED,
    }
    survivors, device_bytes = lifetimes.survivors, trace.device_bytes(lifetimes.device)
    min_large_bytes = np.inf if device_bytes is None else LARGE_SHARE * device_bytes
    failures = [
        failure.seq
        for failure in find_failed_allocations(trace, device=lifetimes.device)
        if device_bytes is None or failure.requested_bytes <= device_bytes
    ]
    growths = []
    for line in lines:
        alloc_times = survivors.alloc_times[line.rows]
        if line.status is LineStatus.FEW:
            if len(np.unique(alloc_times[alloc_times > RECENT_SHARE * lifetimes.clock.length])) > 1:
                growths.append(_build_growth(trace, lifetimes, line, Doubt.FEW))
        elif line.status in doubts:
            doubt = doubts[line.status]
            if doubt is Doubt.STOPPED and int(survivors.bytes[line.rows].sum()) >= min_large_bytes:
                seqs = survivors.alloc_seqs[line.rows]
                later = [failed_at for failed_at in failures if failed_at > seqs.max()][:1]
                # Counted in allocations: an object scan at the failure writes many other events.
                counts = AllocationShare(trace, lifetimes.device).allocations([seqs.min(), seqs.max(), *later])
                max_count = _MAX_INTERVALS * (counts[1] - counts[0]) // len(np.unique(alloc_times))
                if later and counts[2] - counts[1] <= max_count:
                    doubt = Doubt.OUT_OF_MEMORY
            growths.append(_build_growth(trace, lifetimes, line, doubt))
    return growths


def _build_growth(trace: RecordedTrace, lifetimes: LifetimeEvidence, line: JudgedLine, doubt: Doubt) -> Growth:
    survivors, clock = lifetimes.survivors, lifetimes.clock
    beginning = 0.0 if doubt is Doubt.OUT_OF_MEMORY else BEGINNING_SHARE * clock.length
    rows = line.rows[survivors.alloc_times[line.rows] > beginning]
    stacks = survivors.list_stacks(line.rows)
    return Growth(
        doubt=doubt,
        site=Site.of_stack(trace.stacks, stacks[0]),
        stack_ids=tuple(stacks),
        kind=SURVIVORS,
        device=lifetimes.device,
        unit=clock.unit,
        judged_at=clock.judged_at,
        allocated_bytes=int(survivors.bytes[rows].sum()),
        blocks=len(rows),
        arrivals=len(np.unique(survivors.alloc_times[rows])),
        units=round(clock.length) + 1,
        first=clock.first_step + float(survivors.alloc_times[rows].min(initial=clock.length)),
        last=clock.first_step + float(survivors.alloc_times[rows].max(initial=0.0)),
        # A growth that has stopped keeps its first holder, so a later object scan cannot name another.
        block_stacks=() if doubt is Doubt.STOPPED else tuple(np.unique(survivors.stack[rows]).tolist()),
    )


def _list_lines(growths: Sequence[Leak | Growth]) -> set[tuple[str, int]]:
    lines: set[tuple[str, int]] = set()
    for growth in growths:
        sites = [site.site for site in growth.sites] if isinstance(growth, Leak) else [growth.site]
        lines.update((site.filename, site.line) for site in sites)
    return lines
