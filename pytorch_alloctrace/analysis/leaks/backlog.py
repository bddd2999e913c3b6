"""Ever more at once: lines of which more and more blocks are alive at the same time, though each of them dies.

A queue whose consumer is too slow, hooks that are registered again in each step, ensembles that are renewed and get
larger. The number alive at the border of two cells (see csrc/core/replay/long_lives.h) is known exactly. From a fifth
of the run on, the lowest number in each sixth of the rest is above that of the sixth before; the last is well above the
first; the number follows a straight line, which does not flatten; and so does that of the line's whole function.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.table import Table
from .lifetimes import Lives, rows_of

WARMUP = 0.2
SIXTHS = 6
LEAST_MORE = 6
"""Blocks more in the last sixth than in the first."""
LEAST_DIED = 4
"""Blocks that died in the first half of the run."""
STRAIGHT = 0.97
"""The least correlation of the number with time."""
STILL_RISING = 0.6
"""It flattens if it rises by less than this share, from the second third of the time to the last, of what it rose by
from the first to the second: something fills up."""
LEAST_BORDERS = 24
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Backlog:
    """A line of which ever more blocks are alive."""

    site: int
    counts: npt.NDArray[np.int64]
    """Alive at the border of each cell, after the warm-up."""
    since: float
    """The time of the first of these, in units of the clock."""
    since_event: int
    """The event with which that cell begins."""


def find_backlogs(lives: Lives, live: Table | None, function_of: Mapping[int, Hashable]) -> list[Backlog]:
    """Return the lines of one device, unordered.

    Args:
        lives: The evidence.
        live: `Replay.lifetimes` before `lifetimes.last_border`; None if that is compacted.
        function_of: The function that each line, by number, is in.
    """
    borders = lives.borders[1:]
    begin = int(len(borders) * WARMUP)
    if len(borders) - begin < LEAST_BORDERS or lives.is_loading:
        return []
    middle = lives.first_cell + (begin + len(lives.borders)) // 2
    dying = _die_early(lives, middle)
    candidates = [site for site in sorted(lives.survivors.of_site) if site in dying]
    if not candidates or live is None:
        return []
    alive = _Alive(lives, live)
    lines: dict[Hashable, list[int]] = {}
    for line, function in function_of.items():
        lines.setdefault(function, []).append(line)
    since = float(lives.clock.time(borders[begin : begin + 1])[0])
    found = []
    for site in candidates:
        counts = alive.at_borders([site])[begin:]
        # One line of a function may take over what another has made: then their sum does not rise.
        if _rises(counts) and _rises(alive.at_borders(lines.get(function_of.get(site), [site]))[begin:]):
            found.append(Backlog(site, counts, since, int(borders[begin])))
    return found


def _die_early(lives: Lives, middle: int) -> set[int]:
    """The lines of which blocks died all along: a queue that is not full yet loses none."""
    early = lives.deaths.died_cell < middle
    sites, of_row = np.unique(lives.deaths.site[early], return_inverse=True)
    died = np.bincount(of_row, weights=lives.deaths.blocks[early], minlength=len(sites))
    return set(sites[died >= LEAST_DIED].tolist())


class _Alive:
    """How many blocks were alive at the beginning of each cell, exactly: those that died in it or later, and those that
    are live where the deaths end. (The judged event may lie within a cell, so that it cannot be said which of its
    deaths were before it.)"""

    def __init__(self, lives: Lives, live: Table) -> None:
        self._lives = lives
        born = live["alloc_seq"]
        counted = (born >= lives.clock.begin) & ~live["older"]
        self._born = born[counted]
        self._of_site = rows_of(lives.numbers.of(live["stack_id"][counted]))

    def at_borders(self, sites: Sequence[int]) -> npt.NDArray[np.int64]:
        """Of some lines, at all borders but the first."""
        lives, deaths = self._lives, self._lives.deaths
        changes = np.zeros(len(lives.borders) + 1, np.int64)
        for site in sites:
            born = self._born[self._of_site.get(site, _NONE)]
            np.add.at(changes, np.searchsorted(lives.borders, born, side="right"), 1)
            dead = deaths.of_site.get(site, _NONE)
            np.add.at(changes, deaths.born_cell[dead] + (1 - lives.first_cell), deaths.blocks[dead])
            np.add.at(changes, deaths.died_cell[dead] + (1 - lives.first_cell), -deaths.blocks[dead])
        alive: npt.NDArray[np.int64] = np.cumsum(changes)[1 : len(lives.borders)]
        return alive


def _rises(counts: npt.NDArray[np.int64]) -> bool:
    lowest = np.array([part.min() for part in np.array_split(counts, SIXTHS)])
    if (np.diff(lowest) <= 0).any() or lowest[-1] - lowest[0] < LEAST_MORE:
        return False
    thirds = [part.mean() for part in np.array_split(counts, 3)]
    if thirds[2] - thirds[1] < STILL_RISING * (thirds[1] - thirds[0]):
        return False
    return float(np.corrcoef(np.arange(len(counts)), counts)[0, 1]) > STRAIGHT
