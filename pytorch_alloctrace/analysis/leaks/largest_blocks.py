"""Largest blocks of each line over a run, in which growing buffers show (see `growing_buffers`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from ...reading.table import Table
from .leak import MIN_COVERAGE
from .windows import Windows

_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
"""Golden ratio: its multiples share no period with a program."""
_FIRST_POSITIONS = 6
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LargestBlocks:
    sites: _Numbers
    sizes: _Numbers
    """Requested bytes of the largest block."""
    alloc_seqs: _Numbers
    counts: _Numbers
    """Number of blocks of the site."""


@dataclass(frozen=True)
class LargestOverRun:
    """The largest block of each site at each position, as arrays (positions, sites); 0 if there is none."""

    positions: Sequence[int]
    """Events; each position is the state after its event."""
    units: _Numbers
    """Unit that contains each position; -1 for the end of the warm-up."""
    sizes: _Numbers
    alloc_seqs: _Numbers
    counts: _Numbers

    @classmethod
    def join(cls, positions: Sequence[int], units: _Numbers, largest: Sequence[LargestBlocks]) -> LargestOverRun:
        shape = len(positions), 1 + max((int(blocks.sites.max(initial=-1)) for blocks in largest), default=-1)
        sizes, alloc_seqs, counts = (np.zeros(shape, np.int64) for _ in range(3))
        for row, blocks in enumerate(largest):
            sizes[row, blocks.sites] = blocks.sizes
            alloc_seqs[row, blocks.sites] = blocks.alloc_seqs
            counts[row, blocks.sites] = blocks.counts
        return cls(positions, units, sizes, alloc_seqs, counts)

    @property
    def has_grown(self) -> npt.NDArray[np.bool_]:
        """Whether each site has a larger block than at the previous position, and not more blocks."""
        return (np.diff(self.sizes, axis=0) > 0) & (np.diff(self.counts, axis=0) <= 0)

    @property
    def monotonic_sites(self) -> _Numbers:
        """The sites whose largest block was replaced by a larger block and never by a smaller one."""
        return np.flatnonzero((np.diff(self.sizes, axis=0) >= 0).all(axis=0) & self.has_grown.any(axis=0))


def find_largest_blocks(blocks: Table, numbers: SiteNumbers) -> LargestBlocks:
    sites, sizes, alloc_seqs = numbers.of(blocks["stack_id"]), blocks["requested_bytes"], blocks["alloc_seq"]
    order = np.lexsort((alloc_seqs, sizes, sites))
    distinct_sites, first, counts = np.unique(sites[order], return_index=True, return_counts=True)
    largest = order[first + counts - 1]
    return LargestBlocks(distinct_sites, sizes[largest], alloc_seqs[largest], counts)


def choose_positions(windows: Windows) -> tuple[tuple[int, ...], _Numbers]:
    """Return the end of the warm-up, the end of each window and one position within each window, with their units."""
    count = windows.window_counts[0]
    lengths = windows.count_units(count)
    offsets = np.arange(count) * _GOLDEN_RATIO % 1
    ends = np.cumsum(lengths) - 1
    units = np.unique(np.concatenate([ends - (offsets * lengths).astype(np.int64), ends]))
    return (windows.begin, *windows.ends[units].tolist()), np.append(-1, units)


def choose_first_positions(windows: Windows) -> tuple[int, ...]:
    """Return a few of the positions of `choose_positions`, which rule out growth in most programs."""
    positions, _ = choose_positions(windows)
    return positions[:: max(len(positions) // _FIRST_POSITIONS, 1)]


def find_growing_stacks(trace: RecordedTrace, device: str, windows: Windows) -> list[int]:
    """Return all stacks of the lines that got a larger block than ever in nearly all windows, in most programs none."""
    cells = trace.replay.long_lifetimes(device)
    growths = cells.growths
    if not len(growths["cell"]) or not windows.units:
        return []
    begins = cells.begins.astype(np.int64)
    ends = np.append(begins[1:] - 1, cells.last_allocation)
    # A cell that overlaps several windows counts for all of them.
    first, last = (np.searchsorted(windows.ends, events[growths["cell"]], side="left") for events in (begins, ends))
    is_judged = (ends[growths["cell"]] > windows.begin) & (begins[growths["cell"]] <= windows.judged_at)
    lines = growths["line"][is_judged]
    first, last = (np.minimum(units[is_judged], windows.units - 1) for units in (first, last))
    growing_lines: set[int] = set()
    for count in windows.window_counts:
        changes = np.zeros((int(lines.max(initial=-1)) + 1, count + 1), np.int64)
        np.add.at(changes, (lines, windows.window_of(first, count)), 1)
        np.add.at(changes, (lines, windows.window_of(last, count) + 1), -1)
        covered_windows = (np.cumsum(changes[:, :-1], axis=1) > 0).sum(axis=1)
        growing_lines.update(np.flatnonzero(covered_windows >= MIN_COVERAGE * count).tolist())
    if not growing_lines:
        return []
    stacks: list[int] = np.flatnonzero(np.isin(trace.stacks.package_line_numbers, list(growing_lines))).tolist()
    return stacks
