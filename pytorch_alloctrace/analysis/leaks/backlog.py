"""Backlogs: lines whose live blocks become more and more, although each block is freed.

Examples are a queue whose consumer is too slow, hooks that are registered again in each step, and ensembles that are
renewed and get larger. The number of live blocks at the border of two cells (see csrc/core/replay/long_lives.h) is
exact. The first fifth of the run is left out, and the rest is divided into six parts. A line has a backlog if all of
these hold, for the line and for all lines of its function together:

- the minimum of each part is above the minimum of the previous part, and the last is well above the first
- the number of live blocks follows a straight line
- it does not flatten
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.table import Table
from .lifetimes import LifetimeEvidence, rows_of

WARMUP_SHARE = 0.2
"""Share of the run, from its beginning, that is left out."""
PART_COUNT = 6
"""Number of parts that the rest of the run is divided into."""
MIN_ADDED_BLOCKS = 6
"""Minimum number of blocks added from the first part to the last."""
MIN_FREED_BLOCKS = 4
"""Minimum number of blocks freed in the first half of the run."""
MIN_CORRELATION = 0.97
"""Minimum correlation of the number of live blocks with time."""
MIN_LATE_GROWTH_RATIO = 0.6
"""Minimum ratio of the growth in the last third to the growth in the second third.

Below it the curve flattens: something fills up.
"""
MIN_BORDERS = 24
"""Minimum number of cell borders after the warm-up."""
_NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class Backlog:
    """A line of which more and more blocks are live."""

    site: int
    counts: npt.NDArray[np.int64]
    """Number of live blocks at the border of each cell, after the warm-up."""
    since: float
    """Time of the first of these borders, in units of the clock."""
    since_event: int
    """First event of that cell."""


def find_backlogs(
    lifetimes: LifetimeEvidence, live: Table | None, function_of: Mapping[int, Hashable]
) -> list[Backlog]:
    """Return the backlogs of one device, unordered.

    Args:
        lifetimes: The evidence.
        live: `Replay.lifetimes` before `LifetimeEvidence.last_border`; None if that position is compacted.
        function_of: The function of each line, by number.
    """
    borders = lifetimes.borders[1:]
    begin = int(len(borders) * WARMUP_SHARE)
    if len(borders) - begin < MIN_BORDERS or lifetimes.is_loading:
        return []
    middle = lifetimes.first_cell + (begin + len(lifetimes.borders)) // 2
    freeing_sites = _find_freeing_sites(lifetimes, middle)
    candidates = [site for site in sorted(lifetimes.survivors.rows_of_site) if site in freeing_sites]
    if not candidates or live is None:
        return []
    live_counts = _LiveCounts(lifetimes, live)
    lines: dict[Hashable, list[int]] = {}
    for line, function in function_of.items():
        lines.setdefault(function, []).append(line)
    since = float(lifetimes.clock.units_at(borders[begin : begin + 1])[0])
    backlogs = []
    for site in candidates:
        counts = live_counts.at_borders([site])[begin:]
        # One line of a function may replace the blocks of another. Then the sum over the function does not grow.
        if _is_growing(counts) and _is_growing(
            live_counts.at_borders(lines.get(function_of.get(site), [site]))[begin:]
        ):
            backlogs.append(Backlog(site, counts, since, int(borders[begin])))
    return backlogs


def _find_freeing_sites(lifetimes: LifetimeEvidence, middle: int) -> set[int]:
    """Return the lines that freed blocks in the first half: a queue that is not full yet frees none."""
    is_early = lifetimes.freed_blocks.free_cell < middle
    sites, site_of_row = np.unique(lifetimes.freed_blocks.site[is_early], return_inverse=True)
    freed = np.bincount(site_of_row, weights=lifetimes.freed_blocks.counts[is_early], minlength=len(sites))
    return set(sites[freed >= MIN_FREED_BLOCKS].tolist())


class _LiveCounts:
    """Exact numbers of live blocks at the beginning of each cell.

    They follow from the blocks that were freed in the cell or later, and the blocks that are live at the last border.
    The judged event may lie within a cell, and it is unknown which frees of that cell were before the event.
    """

    def __init__(self, lifetimes: LifetimeEvidence, live: Table) -> None:
        self._lifetimes = lifetimes
        alloc_seqs = live["alloc_seq"]
        is_counted = (alloc_seqs >= lifetimes.clock.begin) & ~live["older"]
        self._alloc_seqs = alloc_seqs[is_counted]
        self._rows_of_site = rows_of(lifetimes.numbers.of(live["stack_id"][is_counted]))

    def at_borders(self, sites: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the number of live blocks of some lines at all borders but the first."""
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
