"""Where it is decided that something is a leak.

A trend alone flags what is not a leak: a cache that fills up, a curriculum of longer inputs, garbage that is collected
late. What decides is how the blocks of a line live and die, in units of the program's own work (see `clock`), up to
the last of that work: not to the end of the trace, where the program frees what it has.

survivors (see `survivors`)
    From some age on the blocks of a line do not die any more, and they come again and again.

backlog (see `backlog`)
    Each block of a line dies, but ever more are alive at once.

growing (see `growing_buffers`)
    A line has a block that is replaced again and again by a larger one, and still grows at the end.

If there is none of these, and a line still holds more and more, this is neither a leak nor an all-clear: it is not
decided, and the verdict says which line grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ..evidence import DeviceEvidence, PartEvidence, evidence_of
from .backlog import find_backlogs
from .growing_buffers import growing_leaks, undecided_buffers
from .leak import Leak, LeakingSite, LeakVerdict, Unexplained, room
from .lifetimes import Lives
from .referrers import with_holders
from .survivor_leaks import LeakMaker
from .survivors import Fate, Judged, judge_lines

__all__ = ["Leak", "LeakVerdict", "LeakingSite", "find_leaks", "judge_leaks"]

COUNTS = 0.05
"""What grows unexplained counts if it is at least this share of the peak."""
RECENT = 0.5
"""What was made more than once after this share of the run may go on."""
LEAST_UNCOMPACTED = 24
"""Steps, iterations or parts of the run after a compacted part in which a growing buffer is told from longer inputs."""
BEGINNING = 0.25
"""Of the run: what was born there does not show that anything grows."""


def find_leaks(trace: RecordedTrace, device: str, within: Range | None = None) -> LeakVerdict:
    """Judge one device of a trace, over the whole run or a range. Raises PositionError if no whole step lies in the
    range."""
    return judge_leaks(evidence_of(trace, device, within))


def judge_leaks(evidence: DeviceEvidence) -> LeakVerdict:
    """Judge one device; the most certain and largest leaks first. Memory is in proportion to live blocks and stacks."""
    first = evidence.clocks[0]
    peak = evidence.trace.replay.peak("allocated", evidence.device)
    held = 0 if peak is None else peak.bytes
    leaks: list[Leak] = []
    unexplained: list[Unexplained] = []
    for part in evidence.parts:
        of_part, unclear = _judge(part)
        lines = _lines(leaks)
        leaks += [leak for leak in of_part if not _lines([leak]) & lines]
        unexplained += unclear
    counted = [one for one in unexplained if (one.site.filename, one.site.line) not in _lines(leaks)]
    if sum(one.allocated_bytes for one in counted) < max(COUNTS * held, 1):
        counted = [one for one in counted if one.compacted]
    weighed = [dataclasses.replace(leak, minor=leak.is_minor(held)) for leak in with_holders(evidence, leaks)]
    return LeakVerdict(
        judged=not first.too_short,
        unit=first.unit,
        units=int(first.length) + (1 if first.whole else 0),
        loop=first.loop,
        leaks=tuple(sorted(weighed, key=lambda leak: leak.weight, reverse=True)),
        unexplained=tuple(sorted(counted, key=lambda one: -one.allocated_bytes)),
    )


def _judge(part: PartEvidence) -> tuple[list[Leak], list[Unexplained]]:
    """The leaks in one part of the run, and what grows there unexplained."""
    trace, device, numbers = part.device.trace, part.device.device, part.device.numbers
    lives = Lives.of(trace, device, part.clock, numbers, part.lifetimes.result, part.stacks.result)
    free = room(trace, device, lives.judged_ns, lives.live_bytes)
    maker = LeakMaker(trace, lives, free, part.device.born_at_end.result)
    judged = judge_lines(lives)
    leaks = maker.of_survivors([one for one in judged if one.fate is Fate.KEPT])
    lines = _lines(leaks)
    at_border = None if part.at_border.is_compacted else part.at_border.result
    more = [maker.of_backlog(one) for one in find_backlogs(lives, at_border, _functions(trace, lives))]
    more += growing_leaks(part, free)
    # Too few units are left to tell a buffer from longer inputs.
    buffers: list[Unexplained] = []
    if part.uncompacted is not part.clock and (part.windows is None or part.windows.units < LEAST_UNCOMPACTED):
        buffers = [
            Unexplained(Site.of_stack(trace.stacks, stack), stack, held, 1, compacted=True)
            for stack, held in undecided_buffers(part)
        ]
    for leak in more:
        if not _lines([leak]) & lines:
            leaks.append(leak)
            lines |= _lines([leak])
    unclear = [*buffers, *(_unexplained(trace, lives, one) for one in judged if _is_open(lives, one))]
    return leaks, [one for one in unclear if one.allocated_bytes and (one.site.filename, one.site.line) not in lines]


def _functions(trace: RecordedTrace, lives: Lives) -> dict[int, tuple[object, ...]]:
    """The function that each line with long-lived blocks, by number, is in."""
    first = {site: int(lives.deaths.stack[rows[0]]) for site, rows in lives.deaths.of_site.items()}
    first |= {site: int(lives.survivors.stack[rows[0]]) for site, rows in lives.survivors.of_site.items()}
    return {
        site: trace.stacks.key(stack, "function") if trace.stacks.has_frames(stack) else (site,)
        for site, stack in sorted(first.items())
    }


def _is_open(lives: Lives, judged: Judged) -> bool:
    """Whether it may yet turn out to be a leak."""
    if judged.fate is Fate.FEW:
        births = lives.survivors.birth[judged.rows]
        return len(np.unique(births[births > RECENT * lives.clock.length])) > 1
    return judged.fate is Fate.UNCLEAR


def _unexplained(trace: RecordedTrace, lives: Lives, judged: Judged) -> Unexplained:
    survivors = lives.survivors
    rows = judged.rows[survivors.birth[judged.rows] > BEGINNING * lives.clock.length]
    stacks, of_row = np.unique(survivors.stack[judged.rows], return_inverse=True)
    stack = int(stacks[np.bincount(of_row).argmax()])
    return Unexplained(Site.of_stack(trace.stacks, stack), stack, int(survivors.bytes[rows].sum()), len(rows))


def _lines(leaks: Sequence[Leak]) -> set[tuple[str, int]]:
    return {(site.site.filename, site.site.line) for leak in leaks for site in leak.sites}
