"""Backlogs: lines whose number of live blocks keeps growing although each block is freed.

Examples are a queue whose consumer is too slow and hooks that are registered again in each step. The number of live
blocks at the border of two cells (see csrc/core/replay/long_lifetimes.h) is exact. After the warm-up, the run is
divided into `PART_COUNT` parts. A line has a backlog if all of these hold, for the line and for its whole function:

- the minimum of each part is above the minimum of the previous part, and the last is well above the first
- the number of live blocks follows a straight line
- the curve does not flatten
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.table import Table
from .lifetimes import LifetimeEvidence, rows_of

WARMUP_SHARE = 0.2
PART_COUNT = 6
MIN_ADDED_BLOCKS = 6
MIN_FREED_BLOCKS = 4
"""Minimum number of blocks freed in the first half of the run."""
MIN_CORRELATION = 0.97
MIN_LATE_GROWTH_RATIO = 0.6
"""Minimum ratio of the growth in the last third to that in the second; below it, something fills up."""
MIN_BORDERS = 24
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Backlog:
    site: int
    counts: npt.NDArray[np.int64]
    """Number of live blocks at each cell border after the warm-up."""
    since: float
    """Time of the first border of `counts`, in units of the clock."""
    since_event: int


def find_backlogs(
    lifetimes: LifetimeEvidence, live: Table | None, function_of: Mapping[int, Hashable]
) -> list[Backlog]:
    """Return the backlogs of one device. live: `Replay.lifetimes` before `last_border`; None if compacted."""
    borders = lifetimes.borders[1:]
    first_border = int(len(borders) * WARMUP_SHARE)
    if len(borders) - first_border < MIN_BORDERS or lifetimes.is_loading:
        return []
    middle_cell = lifetimes.first_cell + (first_border + len(lifetimes.borders)) // 2
    freeing_sites = _find_freeing_sites(lifetimes, middle_cell)
    candidates = [site for site in sorted(lifetimes.survivors.rows_of_site) if site in freeing_sites]
    if not candidates or live is None:
        return []
    live_counts = _LiveCounts(lifetimes, live)
    lines: dict[Hashable, list[int]] = {}
    for line, function in function_of.items():
        lines.setdefault(function, []).append(line)
    since = float(lifetimes.clock.units_at(borders[first_border : first_border + 1])[0])
    backlogs = []
    for site in candidates:
        counts = live_counts.at_borders([site])[first_border:]
        # One line of a function may replace the blocks of another. Then the sum over the function does not grow.
        if _is_growing(counts) and _is_growing(
            live_counts.at_borders(lines.get(function_of.get(site), [site]))[first_border:]
        ):
            backlogs.append(Backlog(site, counts, since, int(borders[first_border])))
    return backlogs


def _find_freeing_sites(lifetimes: LifetimeEvidence, middle_cell: int) -> set[int]:
    """Return the lines that freed blocks in the first half: a queue that is not full yet frees none."""
    is_early = lifetimes.freed_blocks.free_cell < middle_cell
    sites, site_of_row = np.unique(lifetimes.freed_blocks.site[is_early], return_inverse=True)
    freed_counts = np.bincount(site_of_row, weights=lifetimes.freed_blocks.counts[is_early], minlength=len(sites))
    return set(sites[freed_counts >= MIN_FREED_BLOCKS].tolist())


class _LiveCounts:
    """Exact numbers of live blocks at the beginning of each cell.

    Counted up to the last border only: in the cell of the judged event, the order of frees and event is unknown.
    """

    def __init__(self, lifetimes: LifetimeEvidence, live: Table) -> None:
        self._lifetimes = lifetimes
        alloc_seqs = live["alloc_seq"]
        is_counted = (alloc_seqs >= lifetimes.clock.begin) & ~live["older"]
        self._alloc_seqs = alloc_seqs[is_counted]
        self._rows_of_site = rows_of(lifetimes.numbers.of(live["stack_id"][is_counted]))

    def at_borders(self, sites: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the number of live blocks of some lines at each border but the first."""
        lifetimes, freed = self._lifetimes, self._lifetimes.freed_blocks
        changes = np.zeros(len(lifetimes.borders) + 1, np.int64)
        for site in sites:
            alloc_seqs = self._alloc_seqs[self._rows_of_site.get(site, _NO_ROWS)]
            np.add.at(changes, np.searchsorted(lifetimes.borders, alloc_seqs, side="right"), 1)
            rows = freed.rows_of_site.get(site, _NO_ROWS)
            np.add.at(changes, freed.alloc_cell[rows] + (1 - lifetimes.first_cell), freed.counts[rows])
            np.add.at(changes, freed.free_cell[rows] + (1 - lifetimes.first_cell), -freed.counts[rows])
        counts: npt.NDArray[np.int64] = np.cumsum(changes)[1 : len(lifetimes.borders)]
        return counts


def _is_growing(counts: npt.NDArray[np.int64]) -> bool:
    minima = np.array([part.min() for part in np.array_split(counts, PART_COUNT)])
    if (np.diff(minima) <= 0).any() or minima[-1] - minima[0] < MIN_ADDED_BLOCKS:
        return False
    thirds = [part.mean() for part in np.array_split(counts, 3)]
    if thirds[2] - thirds[1] < MIN_LATE_GROWTH_RATIO * (thirds[1] - thirds[0]):
        return False
    return float(np.corrcoef(np.arange(len(counts)), counts)[0, 1]) > MIN_CORRELATION
