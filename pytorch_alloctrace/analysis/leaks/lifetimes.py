"""Lifetimes of a device's blocks in the judged part of the run: which survived, and which were freed at what age.

Times are in units of the clock. The replay counts long-lived freed blocks in cells, each a few hundredths of the run
(see csrc/core/replay/long_lifetimes.h). Survivors are exact.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ... import _replay
from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from ...reading.table import Table, sums
from .clock import Clock, Numbers, Times

SmallInts: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.int32]
"""Integers of few bytes: there may be millions of rows."""

LOADING_SHARE = 0.8
"""Share of the allocated blocks that are still live, above which a part of the run may be loading."""


@dataclass(frozen=True)
class Survivors:
    """Blocks allocated in the judged part that are live at the judged event, in the order of their allocation."""

    alloc_times: Times
    alloc_seqs: Numbers
    alloc_ns: Numbers
    bytes: Numbers
    """Allocated bytes."""
    stack: Numbers
    site: Numbers

    @functools.cached_property
    def rows_of_site(self) -> dict[int, Numbers]:
        return rows_of(self.site)

    def list_stacks(self, rows: Numbers) -> list[int]:
        """Return the stacks of some blocks, the one with the most blocks first."""
        stacks, counts = np.unique(self.stack[rows], return_counts=True)
        listed: list[int] = stacks[np.argsort(-counts, kind="stable")].tolist()
        return listed


@dataclass(frozen=True)
class FreedBlocks:
    """Blocks that lived longer than a cell and were freed before the judged event, grouped."""

    cell_times: Times
    """Time of the middle of each cell, in units of the clock."""
    counts: Numbers
    stack: SmallInts
    site: SmallInts
    alloc_cell: SmallInts
    free_cell: SmallInts

    def alloc_times(self, rows: Numbers) -> Times:
        return self.cell_times[self.alloc_cell[rows]]

    def ages(self, rows: Numbers) -> Times:
        return self.cell_times[self.free_cell[rows]] - self.cell_times[self.alloc_cell[rows]]

    @functools.cached_property
    def rows_of_site(self) -> dict[int, Numbers]:
        return rows_of(self.site)


@dataclass(frozen=True)
class LifetimeEvidence:
    device: str
    clock: Clock
    numbers: SiteNumbers
    survivors: Survivors
    freed_blocks: FreedBlocks
    borders: Numbers
    """First event of each cell of the judged part."""
    first_cell: int
    cell_length: int
    last_border: int
    """Event before which the live blocks at each border follow from the freed and the live blocks: the first of the
    cell that contains the judged event, or the event after the last allocation."""
    allocated: int
    freed_counts: dict[int, int]
    """Number of freed blocks of each line, by number: freed until the judged event, at any age."""
    live_bytes: int
    """Allocated bytes of all blocks that are live at the judged event, whenever they were allocated."""
    judged_ns: int

    @property
    def is_loading(self) -> bool:
        """Whether the part may still be loading: no steps, and nearly all of its blocks are still live."""
        return self.clock.unit != "step" and len(self.survivors.alloc_seqs) > LOADING_SHARE * max(self.allocated, 1)

    @classmethod
    def collect(
        cls, trace: RecordedTrace, device: str, clock: Clock, numbers: SiteNumbers, live: Table, totals: Table
    ) -> LifetimeEvidence:
        """Collect the evidence. live and totals: `Replay.lifetimes` and `Replay.stacks` after the judged event."""
        cells = trace.replay.long_lifetimes(device)
        live_bytes = int(live["block_bytes"].sum())
        is_judged = (live["alloc_seq"] >= clock.begin) & ~live["older"]
        alloc_seqs, stacks = live["alloc_seq"][is_judged], live["stack_id"][is_judged]
        survivors = Survivors(
            alloc_times=clock.units_at(alloc_seqs),
            alloc_seqs=alloc_seqs,
            alloc_ns=live["alloc_ns"][is_judged],
            bytes=live["block_bytes"][is_judged],
            stack=stacks,
            site=numbers.of(stacks),
        )
        begins = cells.begins
        first = int(np.searchsorted(begins, clock.begin, side="left"))
        last = _find_last_cell(cells, clock)
        # Blocks that were live before the recording began have no allocation in the trace.
        freed = np.maximum(totals["allocations"] - totals["live_blocks"], 0)
        lines = numbers.of(totals["stack_id"])
        freed_by_line = sums(lines, freed, int(lines.max(initial=-1)) + 1)
        return cls(
            device=device,
            clock=clock,
            numbers=numbers,
            survivors=survivors,
            freed_blocks=_select_freed_blocks(cells.freed_blocks, begins, first, last, clock, numbers),
            borders=begins[first:last],
            first_cell=first,
            cell_length=cells.cell_length,
            last_border=find_last_border(cells, clock),
            allocated=int(totals["allocations"].sum()) - first * cells.cell_length,
            freed_counts=dict(enumerate(freed_by_line.tolist())),
            live_bytes=live_bytes,
            judged_ns=trace.replay.time_before(clock.judged_at + 1),
        )


def find_last_border(cells: _replay.LongLifetimes, clock: Clock) -> int:
    last = _find_last_cell(cells, clock)
    return int(cells.begins[last]) if last < len(cells.begins) else cells.last_allocation + 1


def _find_last_cell(cells: _replay.LongLifetimes, clock: Clock) -> int:
    # Blocks freed in the cell of the judged event may have been freed after the event: they are not counted.
    begins = cells.begins
    return len(begins) if clock.judged_at >= cells.last_allocation else _find_cell(begins, clock.judged_at)


def rows_of(sites: npt.NDArray[np.integer[Any]]) -> dict[int, Numbers]:
    if not len(sites):
        return {}
    if int(sites.max()) <= np.iinfo(np.uint16).max:  # as usual: 16 bits sort in a fifth of the time
        sites = sites.astype(np.uint16)
    order = np.argsort(sites, kind="stable")
    sorted_sites = sites[order]
    first = np.append(0, np.flatnonzero(sorted_sites[1:] != sorted_sites[:-1]) + 1)
    return dict(zip(sorted_sites[first].tolist(), np.split(order, first[1:]), strict=True))


def _find_cell(begins: Numbers, event: int) -> int:
    return max(int(np.searchsorted(begins, event, side="right")) - 1, 0)


def _select_freed_blocks(
    columns: dict[str, npt.NDArray[Any]], begins: Numbers, first: int, last: int, clock: Clock, numbers: SiteNumbers
) -> FreedBlocks:
    is_counted = (columns["allocated_in"] >= first) & (columns["freed_in"] < last)
    alloc_cell, free_cell = columns["allocated_in"][is_counted], columns["freed_in"][is_counted]
    ends = np.append(begins[1:], max(clock.judged_at, begins[-1] if len(begins) else 0))
    middles = begins / 2 + ends / 2 if len(begins) else np.zeros(0)  # begins + ends may overflow
    cell_times = clock.units_at(middles) if len(begins) else np.zeros(0)
    stacks = columns["stack_id"][is_counted]
    return FreedBlocks(
        cell_times=cell_times,
        counts=columns["blocks"][is_counted],
        stack=stacks,
        site=numbers.of(stacks).astype(np.int32),
        alloc_cell=alloc_cell,
        free_cell=free_cell,
    )
