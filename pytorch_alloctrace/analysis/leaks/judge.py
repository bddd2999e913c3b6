"""Definition of a leak.

Growth is no proof of a leak: a cache may fill up, inputs may get longer, garbage may be collected late. A verdict
follows from the lifetimes of a line's blocks, in units of the program's work (see `clock`), up to the last unit. The
end of the trace does not count: the program frees its memory there.

survivors (see `survivors`)        from some age on, the blocks of a line are no longer freed, and more keep coming
backlog (see `backlog`)            each block of a line is freed, but more and more are live at once
growing (see `growing_buffers`)    a block of a line is replaced again and again by a larger block until the end

If a line holds more and more but fits none of the three, the verdict is inconclusive and names the line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ..evidence import DeviceEvidence, PartEvidence, collect_evidence
from .backlog import find_backlogs
from .growing_buffers import find_growing_leaks, find_possible_buffers
from .leak import Leak, LeakingSite, LeakVerdict, Unexplained, estimate_free_bytes
from .lifetimes import LifetimeEvidence
from .referrers import attach_holders
from .survivor_leaks import LeakBuilder
from .survivors import JudgedLine, LineStatus, judge_lines

__all__ = ["Leak", "LeakVerdict", "LeakingSite", "find_leaks", "judge_leaks"]

MIN_UNEXPLAINED_SHARE = 0.05
"""Minimum unexplained growth to report, as a share of the peak."""
RECENT_SHARE = 0.5
"""Share of the run after which a line must allocate repeatedly for its few blocks to be unexplained."""
MIN_UNCOMPACTED_UNITS = 24
"""Minimum number of uncompacted units to distinguish a growing buffer from longer inputs."""
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
    leaks: list[Leak] = []
    unexplained: list[Unexplained] = []
    for part in evidence.parts:
        part_leaks, part_unexplained = _judge_part(part)
        lines = _list_lines(leaks)
        leaks += [leak for leak in part_leaks if not _list_lines([leak]) & lines]
        unexplained += part_unexplained
    reported = [line for line in unexplained if (line.site.filename, line.site.line) not in _list_lines(leaks)]
    if sum(line.allocated_bytes for line in reported) < max(MIN_UNEXPLAINED_SHARE * peak_bytes, 1):
        reported = [line for line in reported if line.compacted]
    leaks_with_holders = [
        dataclasses.replace(leak, minor=leak.is_minor(peak_bytes)) for leak in attach_holders(evidence, leaks)
    ]
    return LeakVerdict(
        judged=not first_clock.is_too_short,
        unit=first_clock.unit,
        units=int(first_clock.length) + (1 if first_clock.is_discrete else 0),
        loop=first_clock.loop,
        leaks=tuple(sorted(leaks_with_holders, key=lambda leak: leak.weight, reverse=True)),
        unexplained=tuple(sorted(reported, key=lambda line: -line.allocated_bytes)),
    )


def _judge_part(part: PartEvidence) -> tuple[list[Leak], list[Unexplained]]:
    trace, device, numbers = part.device.trace, part.device.device, part.device.numbers
    lifetimes = LifetimeEvidence.collect(trace, device, part.clock, numbers, part.lifetimes.result, part.stacks.result)
    free_bytes = estimate_free_bytes(trace, device, lifetimes.judged_ns, lifetimes.live_bytes)
    builder = LeakBuilder(trace, lifetimes, free_bytes, part.device.live_at_end.result)
    judged = judge_lines(lifetimes)
    leaks = builder.build_survivor_leaks([line for line in judged if line.status is LineStatus.LEAKING])
    lines = _list_lines(leaks)
    at_border = None if part.at_border.is_compacted else part.at_border.result
    other_leaks = [
        builder.build_backlog_leak(backlog)
        for backlog in find_backlogs(lifetimes, at_border, _map_functions(trace, lifetimes))
    ]
    other_leaks += find_growing_leaks(part, free_bytes)
    possible_buffers: list[Unexplained] = []
    if part.uncompacted is not part.clock and (part.windows is None or part.windows.units < MIN_UNCOMPACTED_UNITS):
        possible_buffers = [
            Unexplained(Site.of_stack(trace.stacks, stack), stack, size, 1, compacted=True)
            for stack, size in find_possible_buffers(part)
        ]
    for leak in other_leaks:
        if not _list_lines([leak]) & lines:
            leaks.append(leak)
            lines |= _list_lines([leak])
    unexplained = [
        *possible_buffers,
        *(_build_unexplained(trace, lifetimes, line) for line in judged if _may_leak(lifetimes, line)),
    ]
    return leaks, [
        line for line in unexplained if line.allocated_bytes and (line.site.filename, line.site.line) not in lines
    ]


def _map_functions(trace: RecordedTrace, lifetimes: LifetimeEvidence) -> dict[int, tuple[object, ...]]:
    freed_blocks, survivors = lifetimes.freed_blocks, lifetimes.survivors
    first_stacks = {site: int(freed_blocks.stack[rows[0]]) for site, rows in freed_blocks.rows_of_site.items()}
    first_stacks |= {site: int(survivors.stack[rows[0]]) for site, rows in survivors.rows_of_site.items()}
    return {
        site: trace.stacks.key(stack, "function") if trace.stacks.has_frames(stack) else (site,)
        for site, stack in sorted(first_stacks.items())
    }


def _may_leak(lifetimes: LifetimeEvidence, line: JudgedLine) -> bool:
    if line.status is LineStatus.FEW:
        alloc_times = lifetimes.survivors.alloc_times[line.rows]
        return len(np.unique(alloc_times[alloc_times > RECENT_SHARE * lifetimes.clock.length])) > 1
    return line.status is LineStatus.UNCLEAR


def _build_unexplained(trace: RecordedTrace, lifetimes: LifetimeEvidence, line: JudgedLine) -> Unexplained:
    survivors = lifetimes.survivors
    rows = line.rows[survivors.alloc_times[line.rows] > BEGINNING_SHARE * lifetimes.clock.length]
    stacks, stack_of_row = np.unique(survivors.stack[line.rows], return_inverse=True)
    stack = int(stacks[np.bincount(stack_of_row).argmax()])
    return Unexplained(Site.of_stack(trace.stacks, stack), stack, int(survivors.bytes[rows].sum()), len(rows))


def _list_lines(leaks: Sequence[Leak]) -> set[tuple[str, int]]:
    return {(site.site.filename, site.site.line) for leak in leaks for site in leak.sites}
