"""The largest block of each line over a run: where growing buffers show (see `growing_buffers`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from ...reading.table import Table
from .leak import LEAST_COVERAGE
from .windows import Windows

_IRREGULAR = (math.sqrt(5) - 1) / 2
"""The multiples of the golden ratio share no period with anything that a program does."""
_FEW = 6
"""Positions that suffice to see that no block grows."""
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LargestBlocks:
    """The largest block of each site at one position."""

    sites: _Numbers
    sizes: _Numbers
    """Requested bytes."""
    births: _Numbers
    counts: _Numbers
    """Number of blocks that the site has."""


@dataclass(frozen=True)
class LargestOverRun:
    """The largest block of each site at each position: positions x sites, 0 if there is none."""

    positions: Sequence[int]
    """Events: each position is the state after one."""
    units: _Numbers
    """The unit that each position is in; -1: the end of the warm-up."""
    sizes: _Numbers
    births: _Numbers
    counts: _Numbers
    """Number of blocks that the site has."""

    @classmethod
    def of(cls, positions: Sequence[int], units: _Numbers, largest: Sequence[LargestBlocks]) -> LargestOverRun:
        """Join what was found at each position."""
        shape = len(positions), 1 + max((int(blocks.sites.max(initial=-1)) for blocks in largest), default=-1)
        sizes, births, counts = (np.zeros(shape, np.int64) for _ in range(3))
        for row, blocks in enumerate(largest):
            sizes[row, blocks.sites] = blocks.sizes
            births[row, blocks.sites] = blocks.births
            counts[row, blocks.sites] = blocks.counts
        return cls(positions, units, sizes, births, counts)

    @property
    def grown(self) -> npt.NDArray[np.bool_]:
        """At each position but the first: whether the site has a larger block than before, and not more blocks."""
        return (np.diff(self.sizes, axis=0) > 0) & (np.diff(self.counts, axis=0) <= 0)

    @property
    def only_larger(self) -> _Numbers:
        """The sites whose largest block was replaced by a larger one and never by a smaller one."""
        return np.flatnonzero((np.diff(self.sizes, axis=0) >= 0).all(axis=0) & self.grown.any(axis=0))


def largest_of(blocks: Table, numbers: SiteNumbers) -> LargestBlocks:
    """Return the largest block of each site. blocks: as `Replay.live` has them."""
    sites, sizes, births = numbers.of(blocks["stack_id"]), blocks["requested_bytes"], blocks["alloc_seq"]
    order = np.lexsort((births, sizes, sites))
    of_site, first, counts = np.unique(sites[order], return_index=True, return_counts=True)
    largest = order[first + counts - 1]
    return LargestBlocks(of_site, sizes[largest], births[largest], counts)


def positions_in(windows: Windows) -> tuple[tuple[int, ...], _Numbers]:
    """Return where to look, and the unit of each position: the end of the warm-up, and in each window one position and
    its end."""
    count = windows.counts[0]
    lengths = windows.units_in(count)
    within = np.arange(count) * _IRREGULAR % 1
    ends = np.cumsum(lengths) - 1
    units = np.unique(np.concatenate([ends - (within * lengths).astype(np.int64), ends]))
    return (windows.begin, *windows.ends[units].tolist()), np.append(-1, units)


def first_positions(windows: Windows) -> tuple[int, ...]:
    """Return a few of these positions: in most programs no block grows all the time, which they show."""
    positions, _ = positions_in(windows)
    return positions[:: max(len(positions) // _FEW, 1)]


def stacks_that_may_grow(trace: RecordedTrace, device: str, windows: Windows) -> list[int]:
    """Return all stacks of the lines that got a block larger than all before in nearly all windows. A line of which a
    larger one was seen only in some cannot have grown, and most of the time that saves looking at what was live."""
    lives = trace.replay.long_lives(device)
    grown = lives.growths
    if not len(grown["cell"]) or not windows.units:
        return []
    begins = lives.begins.astype(np.int64)
    ends = np.append(begins[1:] - 1, lives.last_allocation)
    # A cell may reach over several windows: it counts for all of them.
    first, last = (np.searchsorted(windows.ends, events[grown["cell"]], side="left") for events in (begins, ends))
    in_time = (ends[grown["cell"]] > windows.begin) & (begins[grown["cell"]] <= windows.judged_at)
    lines = grown["line"][in_time]
    first, last = (np.minimum(units[in_time], windows.units - 1) for units in (first, last))
    growing: set[int] = set()
    for count in windows.counts:
        changes = np.zeros((int(lines.max(initial=-1)) + 1, count + 1), np.int64)
        np.add.at(changes, (lines, windows.window_of(first, count)), 1)
        np.add.at(changes, (lines, windows.window_of(last, count) + 1), -1)
        covered = (np.cumsum(changes[:, :-1], axis=1) > 0).sum(axis=1)
        growing.update(np.flatnonzero(covered >= LEAST_COVERAGE * count).tolist())
    if not growing:
        return []
    stacks: list[int] = np.flatnonzero(np.isin(trace.stacks.line_numbers, list(growing))).tolist()
    return stacks
