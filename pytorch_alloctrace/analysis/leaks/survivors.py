"""Survivors: blocks of one line that are no longer freed once they are old enough, and that keep coming.

no longer freed     there is an age, at most a third of the run, that at least four blocks have reached, and at most a
                    tenth of these were freed later; the survivors have lived twice as long (median). Short-lived
                    blocks of the same line do not hide survivors. The blocks of a full queue, a reservoir, a bounded
                    cache or a moving average are freed, at whatever age
at any later age    at most half of the blocks that reach a later age were freed: a queue that has just filled up frees
                    its oldest blocks
keep coming         they were allocated in at least four units after the beginning (where setup happens) and over at
                    least a fifth of the run; not in one burst, and allocations have not stopped
at an even rate     allocations that get rarer fill something up: one entry for each shape, class or word. The one-sided
                    Kolmogorov-Smirnov test compares them with allocations evenly spread since the first

If a line as a whole does not leak, each of its stacks is judged by itself: a helper that many parts of a program call
allocates blocks that leak and blocks that do not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .lifetimes import LifetimeEvidence

CANDIDATE_AGES = (1, 2, 3, 4, 6, 8)
"""Ages from which blocks may no longer be freed, in parts of the run (`AGE_PARTS`)."""
AGE_PARTS = 24
MIN_BLOCKS = 4
MIN_BLOCKS_WITHOUT_STEPS = 12
"""Minimum number of survivors without steps, where a unit is only a share of the allocations."""
MAX_FREED_SHARE = 0.1
MAX_LATER_FREED_SHARE = 0.5
EARLY_SHARE = 0.4
"""Share of the run after which no old block may be freed if only the blocks allocated later are judged."""
MIN_REGROWTH_RATIO = 1.5
"""Minimum ratio of later kept to old freed blocks: a list cleared after each of two epochs is longest at the end."""
SETUP_SHARE = 0.02
MIN_SPAN_SHARE = 0.2
MAX_PAUSE_SHARE = 0.35
"""Maximum share of the time in which survivors are allocated without an allocation of a survivor."""
MAX_PAUSE_RATIO = 2
"""Maximum ratio of the time since the last allocation to the longest pause; beyond it allocations have stopped."""
RESOLUTION_PARTS = 240
"""Number of parts of a run without steps or iterations in which allocations are distinguished."""
_NO_ROWS = np.zeros(0, np.int64)


class LineStatus(enum.Enum):
    LEAKING = "leaking"
    BOUNDED = "bounded"
    SETUP = "set up"
    STOPPED = "stopped"
    FILLING = "filling"
    FEW = "few"
    LATE = "late"
    """The blocks were allocated in the last part of the run: they may be freed at an age that the run did not reach."""
    BURSTS = "bursts"


@dataclass(frozen=True)
class JudgedLine:
    """A line, or one stack of a line, and the result of judging its blocks."""

    status: LineStatus
    site: int
    rows: npt.NDArray[np.int64]
    """Rows of the survivors: of a leak those older than `age`, else those older than the smallest age."""
    age: float = 0.0
    """Age from which blocks are no longer freed, in units."""
    reached: int = 0
    """Number of blocks that reached `age`, freed or not."""
    freed: int = 0
    onset: float = 0.0
    last: float = 0.0
    """Time until which blocks must be allocated to be older than `age`."""
    alloc_units: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    unevenness: float = 0.0
    """Kolmogorov-Smirnov distance of the allocations from an even rate."""
    ever_freed: int = 0
    """Number of blocks of the line that were freed, at any age."""


def judge_lines(lifetimes: LifetimeEvidence) -> list[JudgedLine]:
    """Judge every line that holds old blocks, most bytes first."""
    survivors = lifetimes.survivors
    smallest_age = max(lifetimes.clock.length / AGE_PARTS, 1.0)
    is_old = lifetimes.clock.length - survivors.alloc_times > smallest_age
    judged: list[JudgedLine] = []
    for site in np.unique(survivors.site[is_old]).tolist():
        rows, freed_rows = survivors.rows_of_site[site], lifetimes.freed_blocks.rows_of_site.get(site, _NO_ROWS)
        line = _judge(lifetimes, site, rows, freed_rows)
        leaking_stacks: list[JudgedLine] = []
        if line.status in (LineStatus.BOUNDED, LineStatus.FILLING, LineStatus.LATE, LineStatus.BURSTS):
            stacks = [_judge(lifetimes, site, *stack) for stack in _split_into_stacks(lifetimes, rows, freed_rows)]
            leaking_stacks = [stack for stack in stacks if stack.status is LineStatus.LEAKING]
        judged += leaking_stacks or [line]
    return sorted(judged, key=lambda line: -int(survivors.bytes[line.rows].sum()))


def _split_into_stacks(
    lifetimes: LifetimeEvidence, rows: npt.NDArray[np.int64], freed_rows: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the survivors and freed blocks of each stack that may leak: a line may have thousands of stacks."""
    stacks, stack_of_row = np.unique(lifetimes.survivors.stack[rows], return_inverse=True)
    if len(stacks) < 2:
        return
    freed_rows = freed_rows[np.isin(lifetimes.freed_blocks.stack[freed_rows], stacks)]
    stack_of_freed = np.searchsorted(stacks, lifetimes.freed_blocks.stack[freed_rows])
    length, smallest_age = lifetimes.clock.length, max(lifetimes.clock.length / AGE_PARTS, 1.0)
    ages, freed_ages = length - lifetimes.survivors.alloc_times[rows], lifetimes.freed_blocks.ages(freed_rows)
    last_free = np.full(len(stacks), -np.inf)
    is_old = freed_ages > smallest_age
    np.maximum.at(
        last_free, stack_of_freed[is_old], (lifetimes.freed_blocks.alloc_times(freed_rows) + freed_ages)[is_old]
    )
    may_leak = last_free <= EARLY_SHARE * length  # blocks kept since then may leak
    for part in CANDIDATE_AGES:
        old_counts = np.bincount(stack_of_row[ages > part * smallest_age], minlength=len(stacks))
        is_late = freed_ages > part * smallest_age
        freed_counts = np.bincount(
            stack_of_freed[is_late], weights=lifetimes.freed_blocks.counts[freed_rows[is_late]], minlength=len(stacks)
        )
        may_leak |= (old_counts >= MIN_BLOCKS) & (freed_counts <= MAX_FREED_SHARE * (freed_counts + old_counts))
    may_leak &= np.bincount(stack_of_row, minlength=len(stacks)) >= MIN_BLOCKS
    selected = np.flatnonzero(may_leak)
    yield from zip(
        _split_by_group(rows, stack_of_row, selected),
        _split_by_group(freed_rows, stack_of_freed, selected),
        strict=True,
    )


def _split_by_group(
    values: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], selected: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    if not len(selected):
        return []
    order = np.argsort(groups, kind="stable")
    begins, ends = (np.searchsorted(groups[order], selected, side=side) for side in ("left", "right"))
    return [values[order[begin:end]] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _judge(
    lifetimes: LifetimeEvidence, site: int, rows: npt.NDArray[np.int64], freed_rows: npt.NDArray[np.int64]
) -> JudgedLine:
    line = _judge_all(lifetimes, site, rows, freed_rows)
    freed_blocks = lifetimes.freed_blocks
    old_freed_rows = freed_rows[freed_blocks.ages(freed_rows) > max(lifetimes.clock.length / AGE_PARTS, 1.0)]
    if line.status not in (LineStatus.BOUNDED, LineStatus.LATE, LineStatus.BURSTS) or not len(old_freed_rows):
        return line
    # The line may have freed all its blocks once, before the leak began.
    last_free = float((freed_blocks.alloc_times(old_freed_rows) + freed_blocks.ages(old_freed_rows)).max())
    later_rows = rows[lifetimes.survivors.alloc_times[rows] >= last_free]
    if (
        last_free > EARLY_SHARE * lifetimes.clock.length
        or len(later_rows) < MIN_REGROWTH_RATIO * freed_blocks.counts[old_freed_rows].sum()
    ):
        return line
    later_line = _judge_all(lifetimes, site, later_rows, freed_rows[freed_blocks.alloc_times(freed_rows) >= last_free])
    return later_line if later_line.status is LineStatus.LEAKING else line


def _judge_all(
    lifetimes: LifetimeEvidence, site: int, rows: npt.NDArray[np.int64], freed_rows: npt.NDArray[np.int64]
) -> JudgedLine:
    end = lifetimes.clock.length
    ages = end - lifetimes.survivors.alloc_times[rows]
    freed_ages, freed_counts = lifetimes.freed_blocks.ages(freed_rows), lifetimes.freed_blocks.counts[freed_rows]
    smallest_age = max(end / AGE_PARTS, 1.0)
    old_rows = rows[ages > smallest_age]
    units = _list_units(lifetimes, old_rows)
    if len(units) < MIN_BLOCKS:
        return JudgedLine(LineStatus.FEW if len(units) else LineStatus.SETUP, site, old_rows)
    is_freed = False
    for part in CANDIDATE_AGES:
        age = part * smallest_age
        is_old = ages > age
        if is_old.sum() < MIN_BLOCKS:
            return JudgedLine(LineStatus.BOUNDED if is_freed else LineStatus.FEW, site, old_rows)
        freed = int(freed_counts[freed_ages > age].sum())
        is_freed = freed > MAX_FREED_SHARE * (freed + is_old.sum())
        if not is_freed and np.median(ages[is_old]) >= 2 * age:
            break
    else:
        return JudgedLine(LineStatus.BOUNDED if is_freed else LineStatus.LATE, site, old_rows)
    if _are_freed_later(ages[is_old], freed_ages, freed_counts, age):
        return JudgedLine(LineStatus.BOUNDED, site, old_rows)
    line = JudgedLine(
        status=LineStatus.LEAKING,
        site=site,
        rows=rows[is_old],
        age=age,
        reached=freed + int(is_old.sum()),
        freed=freed,
        last=float(np.ceil(end - age)) - 1 if lifetimes.clock.is_discrete else end - age,
        ever_freed=lifetimes.freed_counts.get(site, 0),
    )
    return _judge_alloc_times(lifetimes, line, old_rows)


def _are_freed_later(
    ages: npt.NDArray[np.float64], freed_ages: npt.NDArray[np.float64], freed_counts: npt.NDArray[np.int64], age: float
) -> bool:
    """Return whether more than half of the blocks that reach some later age are freed."""
    is_later = freed_ages > age
    order = np.argsort(-freed_ages[is_later])
    freed = np.cumsum(freed_counts[is_later][order])
    reached = freed + len(ages) - np.searchsorted(np.sort(ages), freed_ages[is_later][order], side="left")
    return bool(((freed >= MIN_BLOCKS) & (freed > MAX_LATER_FREED_SHARE * reached)).any())


def _list_units(lifetimes: LifetimeEvidence, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the distinct units after setup in which blocks were allocated."""
    clock = lifetimes.clock
    resolution = 1.0 if clock.is_discrete else clock.length / RESOLUTION_PARTS
    units = np.unique(np.floor(lifetimes.survivors.alloc_times[rows] / resolution)) * resolution
    return units[units > SETUP_SHARE * clock.length]


def _judge_alloc_times(lifetimes: LifetimeEvidence, line: JudgedLine, old_rows: npt.NDArray[np.int64]) -> JudgedLine:
    """Judge whether survivors kept coming, at an even rate, until the end."""
    clock, end = lifetimes.clock, lifetimes.clock.length
    alloc_times = lifetimes.survivors.alloc_times[line.rows]
    units = _list_units(lifetimes, line.rows)

    def reject(status: LineStatus) -> JudgedLine:
        return JudgedLine(status, line.site, old_rows)

    if len(units) < MIN_BLOCKS or (not clock.is_discrete and len(alloc_times) < MIN_BLOCKS_WITHOUT_STEPS):
        return reject(LineStatus.FEW)
    onset = float(units[0])
    alloc_period = line.last - onset
    pauses = np.diff(units)
    if line.last - units[-1] > MAX_PAUSE_RATIO * max(float(pauses.max()), 1.0):
        return reject(LineStatus.STOPPED)
    if alloc_period < MIN_SPAN_SHARE * end:
        return reject(LineStatus.LATE)
    unit_count = len(units)
    max_lead = max(0.15, 1.15 / np.sqrt(unit_count))
    share, expected = np.arange(1, unit_count + 1) / unit_count, (units - onset) / max(alloc_period, 1e-9)
    if float((share - expected).max()) > max_lead:
        return reject(LineStatus.FILLING)
    if float(pauses.max()) > MAX_PAUSE_SHARE * alloc_period:
        return reject(LineStatus.BURSTS)
    unevenness = float(np.abs(np.concatenate([share - expected, expected - (share - 1 / unit_count)])).max())
    rows = line.rows[alloc_times >= onset]
    return JudgedLine(
        status=LineStatus.LEAKING,
        site=line.site,
        rows=rows,
        age=line.age,
        reached=line.reached,
        freed=line.freed,
        onset=onset,
        last=line.last,
        alloc_units=units,
        unevenness=unevenness,
        ever_freed=line.ever_freed,
    )
