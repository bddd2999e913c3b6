"""Survivors: blocks of one line that, once they are old enough, do not die any more, and come again and again.

They stop dying    there is an age, at most a third of the run, that at least four blocks have reached and at most a
                   tenth of those died later; the survivors have lived twice as long (median). So the short-lived blocks
                   of the same line do not hide them, and a full queue, a reservoir, a bounded cache or a moving average
                   does not look like them: what they hold dies, at whatever age
whatever the age   nor do half of those die that reach any later age: a queue that is just full loses its oldest
again and again    they were born in at least four units after the beginning (what is set up is born there), and over at
                   least a fifth of the run; not in one burst, and it is not over
not more and more seldom
                   births that get rarer fill something up: one entry for each shape, class or word. By the one-sided
                   test of Kolmogorov and Smirnov against births that are even from the first one on

beside other work  Without steps, a program that frees next to nothing may still be loading: what it keeps is not judged

Lines are judged first. Where a line fails, its stacks are, each by itself: a helper that many parts of a program call
makes what leaks and what does not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from .lifetimes import Lives

AGES = (1, 2, 3, 4, 6, 8)
"""The ages at which blocks may stop dying, in 24ths of the run."""
OLD = 24
LEAST_BLOCKS = 4
LEAST_BLOCKS_WITHOUT_STEPS = 12
"""A step is a unit of the program's work; a share of its allocations is not."""
STILL_DYING = 0.1
"""Blocks still die if more than this share of those that reach an age does so later."""
ALL_DIE = 0.5
"""And nearly all do, if it is more than this at any later age."""
EARLY = 0.4
"""If no old block of a line died after this share of the run,"""
MORE = 1.5
"""and it has kept this many times as many since, only what came since is judged. (A list that is cleared after each of
two epochs is longest when the run ends.)"""
SETUP = 0.02
"""What is born in this share of the run is set up there."""
SHORTEST = 0.2
"""The least share of the run over which survivors are born."""
LONGEST_PAUSE = 0.35
"""The largest share of that time in which none is born."""
OVER = 2
"""Births are over if none came for longer than this many times the longest time between two of them."""
FINEST = 240
"""Births are told apart by the unit, or by this part of a run that has none."""
_NONE = np.zeros(0, np.int64)


class Fate(enum.Enum):
    """What becomes of a line's blocks."""

    KEPT = "kept"
    """They leak."""
    DIE = "die"
    """Old ones die, too: a buffer with a bound."""
    SETUP = "set up"
    """They were made at the beginning."""
    OVER = "over"
    """Nothing was added for a long time."""
    FILLING = "filling"
    """Something fills up: fewer and fewer are added."""
    FEW = "few"
    """Too few to be a habit: what is made once or twice on the way."""
    UNCLEAR = "unclear"
    """Too late, or in bursts."""


@dataclass(frozen=True)
class Judged:
    """A line, or one stack of it, and what became of its blocks."""

    fate: Fate
    site: int
    rows: npt.NDArray[np.int64]
    """Its survivors: of a leak those that are old enough, else all that are older than the smallest age."""
    age: float = 0.0
    """From this age on blocks are kept, in units."""
    reached: int = 0
    """How many blocks reached it."""
    died: int = 0
    """How many of these died."""
    onset: float = 0.0
    """When the first of them was born."""
    last: float = 0.0
    """Blocks born until then are old enough."""
    births: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The units in which they were born, each once."""
    unevenness: float = 0.0
    """How far births are from even: the distance of Kolmogorov and Smirnov."""
    ever_died: int = 0
    """How many blocks of the line have died at all, at any age."""


def judge_lines(lives: Lives) -> list[Judged]:
    """Every line that holds old blocks, most bytes first."""
    survivors = lives.survivors
    smallest = max(lives.clock.length / OLD, 1.0)
    old = lives.clock.length - survivors.birth > smallest
    judged: list[Judged] = []
    for site in np.unique(survivors.site[old]).tolist():
        rows, deaths = survivors.of_site[site], lives.deaths.of_site.get(site, _NONE)
        of_line = _judge(lives, site, rows, deaths)
        found: list[Judged] = []
        if of_line.fate in (Fate.DIE, Fate.FILLING, Fate.UNCLEAR):
            parts = [_judge(lives, site, *part) for part in _stacks_that_may_keep(lives, rows, deaths)]
            found = [of_stack for of_stack in parts if of_stack.fate is Fate.KEPT]
        if lives.is_loading:
            found, of_line = [], replace(of_line, fate=Fate.UNCLEAR) if of_line.fate is Fate.KEPT else of_line
        judged += found or [of_line]
    return sorted(judged, key=lambda one: -int(survivors.bytes[one.rows].sum()))


def _stacks_that_may_keep(
    lives: Lives, rows: npt.NDArray[np.int64], deaths: npt.NDArray[np.int64]
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """The survivors and the deaths of each stack of a line that has several. Left out are those of which too many still
    die at all ages: a line may have thousands of them."""
    stacks, of_row = np.unique(lives.survivors.stack[rows], return_inverse=True)
    if len(stacks) < 2:
        return
    deaths = deaths[np.isin(lives.deaths.stack[deaths], stacks)]
    of_death = np.searchsorted(stacks, lives.deaths.stack[deaths])
    length, smallest = lives.clock.length, max(lives.clock.length / OLD, 1.0)
    ages, died_at = length - lives.survivors.birth[rows], lives.deaths.age(deaths)
    last_death = np.full(len(stacks), -np.inf)
    is_old = died_at > smallest
    np.maximum.at(last_death, of_death[is_old], (lives.deaths.birth(deaths) + died_at)[is_old])
    keeps = last_death <= EARLY * length  # what is kept since may be a leak
    for part in AGES:
        old = np.bincount(of_row[ages > part * smallest], minlength=len(stacks))
        late = died_at > part * smallest
        gone = np.bincount(of_death[late], weights=lives.deaths.blocks[deaths[late]], minlength=len(stacks))
        keeps |= (old >= LEAST_BLOCKS) & (gone <= STILL_DYING * (gone + old))
    keeps &= np.bincount(of_row, minlength=len(stacks)) >= LEAST_BLOCKS
    kept = np.flatnonzero(keeps)
    yield from zip(_of_groups(rows, of_row, kept), _of_groups(deaths, of_death, kept), strict=True)


def _of_groups(
    values: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """The values of each of the wanted groups, in order."""
    if not len(wanted):
        return []
    order = np.argsort(groups, kind="stable")
    begins, ends = (np.searchsorted(groups[order], wanted, side=side) for side in ("left", "right"))
    return [values[order[begin:end]] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _judge(lives: Lives, site: int, rows: npt.NDArray[np.int64], deaths: npt.NDArray[np.int64]) -> Judged:
    found = _judge_all(lives, site, rows, deaths)
    old = deaths[lives.deaths.age(deaths) > max(lives.clock.length / OLD, 1.0)]
    if found.fate not in (Fate.DIE, Fate.UNCLEAR) or not len(old):
        return found
    # What a line held first may have been let go of, all of it, before the leak began.
    over = float((lives.deaths.birth(old) + lives.deaths.age(old)).max())
    later = rows[lives.survivors.birth[rows] >= over]
    if over > EARLY * lives.clock.length or len(later) < MORE * lives.deaths.blocks[old].sum():
        return found
    again = _judge_all(lives, site, later, deaths[lives.deaths.birth(deaths) >= over])
    return again if again.fate is Fate.KEPT else found


def _judge_all(lives: Lives, site: int, rows: npt.NDArray[np.int64], deaths: npt.NDArray[np.int64]) -> Judged:
    end = lives.clock.length
    ages = end - lives.survivors.birth[rows]
    died_at, died = lives.deaths.age(deaths), lives.deaths.blocks[deaths]
    smallest = max(end / OLD, 1.0)
    held = rows[ages > smallest]
    units = _units(lives, held)
    if len(units) < LEAST_BLOCKS:
        return Judged(Fate.FEW if len(units) else Fate.SETUP, site, held)
    dying = False
    for part in AGES:
        age = part * smallest
        old = ages > age
        if old.sum() < LEAST_BLOCKS:
            return Judged(Fate.DIE if dying else Fate.FEW, site, held)
        gone = int(died[died_at > age].sum())
        dying = gone > STILL_DYING * (gone + old.sum())
        if not dying and np.median(ages[old]) >= 2 * age:
            break
    else:
        return Judged(Fate.DIE if dying else Fate.UNCLEAR, site, held)
    if _all_die_later(ages[old], died_at, died, age):
        return Judged(Fate.DIE, site, held)
    found = Judged(
        fate=Fate.KEPT,
        site=site,
        rows=rows[old],
        age=age,
        reached=gone + int(old.sum()),
        died=gone,
        last=float(np.ceil(end - age)) - 1 if lives.clock.whole else end - age,
        ever_died=lives.freed.get(site, 0),
    )
    return _judge_births(lives, found, held)


def _all_die_later(
    ages: npt.NDArray[np.float64], died_at: npt.NDArray[np.float64], died: npt.NDArray[np.int64], age: float
) -> bool:
    """Whether nearly all that reach some later age die after all."""
    later = died_at > age
    order = np.argsort(-died_at[later])
    gone = np.cumsum(died[later][order])
    reached = gone + len(ages) - np.searchsorted(np.sort(ages), died_at[later][order], side="left")
    return bool(((gone >= LEAST_BLOCKS) & (gone > ALL_DIE * reached)).any())


def _units(lives: Lives, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The units, each once, in which blocks were born after the beginning."""
    clock = lives.clock
    finest = 1.0 if clock.whole else clock.length / FINEST
    units = np.unique(np.floor(lives.survivors.birth[rows] / finest)) * finest
    return units[units > SETUP * clock.length]


def _judge_births(lives: Lives, found: Judged, held: npt.NDArray[np.int64]) -> Judged:
    """Whether blocks that are kept came again and again, until the end."""
    clock, end = lives.clock, lives.clock.length
    births = lives.survivors.birth[found.rows]
    units = _units(lives, found.rows)

    def other(fate: Fate) -> Judged:
        return Judged(fate, found.site, held)

    if len(units) < LEAST_BLOCKS or (not clock.whole and len(births) < LEAST_BLOCKS_WITHOUT_STEPS):
        return other(Fate.FEW)
    onset = float(units[0])
    span = found.last - onset
    pauses = np.diff(units)
    if found.last - units[-1] > OVER * max(float(pauses.max()), 1.0):
        return other(Fate.OVER)
    if span < SHORTEST * end:
        return other(Fate.UNCLEAR)
    count = len(units)
    limit = max(0.15, 1.15 / np.sqrt(count))
    share, expected = np.arange(1, count + 1) / count, (units - onset) / max(span, 1e-9)
    if float((share - expected).max()) > limit:
        return other(Fate.FILLING)
    if float(pauses.max()) > LONGEST_PAUSE * span:
        return other(Fate.UNCLEAR)
    unevenness = float(np.abs(np.concatenate([share - expected, expected - (share - 1 / count)])).max())
    kept = found.rows[births >= onset]
    return Judged(
        fate=Fate.KEPT,
        site=found.site,
        rows=kept,
        age=found.age,
        reached=found.reached,
        died=found.died,
        onset=onset,
        last=found.last,
        births=units,
        unevenness=unevenness,
        ever_died=found.ever_died,
    )
