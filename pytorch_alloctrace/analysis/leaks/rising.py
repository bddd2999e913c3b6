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

from .lives import Lives

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


@dataclass(frozen=True)
class Rising:
    """A line of which ever more blocks are alive."""

    site: int
    counts: npt.NDArray[np.int64]
    """Alive at the border of each cell, after the warm-up."""
    since: float
    """The time of the first of these, in units of the clock."""


def find_rising(lives: Lives, function_of: Mapping[int, Hashable]) -> list[Rising]:
    """The lines of one device, unordered. function_of: the function that each line, by number, is in."""
    borders = lives.borders[1:]
    begin = int(len(borders) * WARMUP)
    if len(borders) - begin < LEAST_BORDERS or lives.is_loading:
        return []
    times = lives.clock.time(borders)
    lines: dict[Hashable, list[int]] = {}
    for line, function in function_of.items():
        lines.setdefault(function, []).append(line)
    found = []
    for site in np.unique(lives.survivors.site).tolist():
        counts = _alive(lives, [site])[begin:]
        # One line of a function may take over what another has made: then their sum does not rise.
        if (
            _rises(counts)
            and _dies_early(lives, site, begin)
            and _rises(_alive(lives, lines.get(function_of.get(site), [site]))[begin:])
        ):
            found.append(Rising(site, counts, float(times[begin])))
    return found


def _dies_early(lives: Lives, site: int, begin: int) -> bool:
    """Whether blocks of a line died all along: a queue that is not full yet loses none."""
    middle = lives.first_cell + (begin + len(lives.borders)) // 2
    early = (lives.deaths.site == site) & (lives.deaths.died_cell < middle)
    return int(lives.deaths.blocks[early].sum()) >= LEAST_DIED


def _rises(counts: npt.NDArray[np.int64]) -> bool:
    lowest = np.array([part.min() for part in np.array_split(counts, SIXTHS)])
    if (np.diff(lowest) <= 0).any() or lowest[-1] - lowest[0] < LEAST_MORE:
        return False
    thirds = [part.mean() for part in np.array_split(counts, 3)]
    if thirds[2] - thirds[1] < STILL_RISING * (thirds[1] - thirds[0]):
        return False
    return float(np.corrcoef(np.arange(len(counts)), counts)[0, 1]) > STRAIGHT


def _alive(lives: Lives, sites: Sequence[int]) -> npt.NDArray[np.int64]:
    """How many blocks of some lines were alive at the beginning of each cell but the first."""
    changes = np.zeros(len(lives.borders) + 1, np.int64)
    of_sites = np.isin(lives.survivors.site, sites)
    cells = np.searchsorted(lives.borders, lives.survivors.seq[of_sites], side="right")
    np.add.at(changes, np.minimum(cells, len(changes) - 1), 1)
    dead = np.isin(lives.deaths.site, sites)
    np.add.at(changes, lives.deaths.born_cell[dead] + 1 - lives.first_cell, lives.deaths.blocks[dead])
    np.add.at(changes, lives.deaths.died_cell[dead] + 1 - lives.first_cell, -lives.deaths.blocks[dead])
    return np.cumsum(changes)[1 : len(lives.borders)]
