"""The lives of a device's blocks in the part of the run that is judged: who survived, and who died old.

Times are in units of the clock. Deaths come from the replay's one pass in cells (see csrc/core/replay/long_lives.h), a
few hundredths of the run each; survivors are known exactly.
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

Small: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.int32]
"""There may be millions of rows."""

LOADING = 0.8
"""A part of the run that keeps more than this share of what it allocates may be loading."""


@dataclass(frozen=True)
class Survivors:
    """The blocks that are live at the judged event and were born in the judged part, in the order of their births."""

    birth: Times
    """In units of the clock."""
    seq: Numbers
    alloc_ns: Numbers
    bytes: Numbers
    """Allocated bytes."""
    stack: Numbers
    site: Numbers
    """The line of user code, a number."""

    @functools.cached_property
    def of_site(self) -> dict[int, Numbers]:
        """The rows of each line, in order."""
        return rows_of(self.site)


@dataclass(frozen=True)
class Deaths:
    """Blocks that lived longer than a cell and died before the judged event."""

    times: Times
    """Of the middle of each cell."""
    blocks: Numbers
    stack: Small
    site: Small
    born_cell: Small
    died_cell: Small

    def birth(self, rows: Numbers) -> Times:
        """When the blocks of some rows were born."""
        return self.times[self.born_cell[rows]]

    def age(self, rows: Numbers) -> Times:
        """The age at which they died."""
        return self.times[self.died_cell[rows]] - self.times[self.born_cell[rows]]

    @functools.cached_property
    def of_site(self) -> dict[int, Numbers]:
        """The rows of each line, in order."""
        return rows_of(self.site)


@dataclass(frozen=True)
class Lives:
    """The evidence on one device, for one part of the run."""

    device: str
    clock: Clock
    numbers: SiteNumbers
    survivors: Survivors
    deaths: Deaths
    borders: Numbers
    """The event with which each cell of the judged part begins."""
    first_cell: int
    cell_length: int
    """Allocations in each cell."""
    last_border: int
    """The event before which the number alive at each border follows from the deaths and what is live: the beginning
    of the cell that the judged event is in, or the event after the last allocation."""
    allocated: int
    """Blocks that were allocated in the judged part."""
    freed: dict[int, int]
    """How many blocks of each line, by number, were freed until the judged event, at any age."""
    live_bytes: int
    """Allocated bytes of all that is live at the judged event, whenever it was born."""
    judged_ns: int

    @property
    def is_loading(self) -> bool:
        """Whether nearly all blocks that were allocated in the judged part are still live, and no steps say that it has
        begun to work: it may be loading."""
        return self.clock.unit != "step" and len(self.survivors.seq) > LOADING * max(self.allocated, 1)

    @classmethod
    def of(
        cls, trace: RecordedTrace, device: str, clock: Clock, numbers: SiteNumbers, live: Table, totals: Table
    ) -> Lives:
        """Gather the evidence. live, totals: `Replay.lifetimes` and `Replay.stacks` after the judged event."""
        evidence = trace.replay.long_lives(device)
        live_bytes = int(live["block_bytes"].sum())
        judged = (live["alloc_seq"] >= clock.begin) & ~live["older"]
        births, stacks = live["alloc_seq"][judged], live["stack_id"][judged]
        survivors = Survivors(
            birth=clock.time(births),
            seq=births,
            alloc_ns=live["alloc_ns"][judged],
            bytes=live["block_bytes"][judged],
            stack=stacks,
            site=numbers.of(stacks),
        )
        begins = evidence.begins
        first = int(np.searchsorted(begins, clock.begin, side="left"))
        last = _last_cell(evidence, clock)
        # What was live before the recording began was not allocated in it.
        freed = np.maximum(totals["allocations"] - totals["live_blocks"], 0)
        lines = numbers.of(totals["stack_id"])
        by_line = sums(lines, freed, int(lines.max(initial=-1)) + 1)
        return cls(
            device=device,
            clock=clock,
            numbers=numbers,
            survivors=survivors,
            deaths=_deaths(evidence.deaths, begins, first, last, clock, numbers),
            borders=begins[first:last],
            first_cell=first,
            cell_length=evidence.cell_length,
            last_border=last_border(evidence, clock),
            allocated=int(totals["allocations"].sum()) - first * evidence.cell_length,
            freed=dict(enumerate(by_line.tolist())),
            live_bytes=live_bytes,
            judged_ns=trace.replay.time_before(clock.judged_at + 1),
        )


def last_border(evidence: _replay.LongLives, clock: Clock) -> int:
    """See `Lives.last_border`."""
    last = _last_cell(evidence, clock)
    return int(evidence.begins[last]) if last < len(evidence.begins) else evidence.last_allocation + 1


def _last_cell(evidence: _replay.LongLives, clock: Clock) -> int:
    # What died in the cell of the judged event may have died after it: it is not counted.
    begins = evidence.begins
    return len(begins) if clock.judged_at >= evidence.last_allocation else _cell(begins, clock.judged_at)


def rows_of(sites: npt.NDArray[np.integer[Any]]) -> dict[int, Numbers]:
    """The rows of each line, by number, in order."""
    if not len(sites):
        return {}
    if int(sites.max()) <= np.iinfo(np.uint16).max:  # as they are: 16 bits take a fifth of the time to sort
        sites = sites.astype(np.uint16)
    order = np.argsort(sites, kind="stable")
    in_order = sites[order]
    first = np.append(0, np.flatnonzero(in_order[1:] != in_order[:-1]) + 1)
    return dict(zip(in_order[first].tolist(), np.split(order, first[1:]), strict=True))


def _cell(begins: Numbers, event: int) -> int:
    return max(int(np.searchsorted(begins, event, side="right")) - 1, 0)


def _deaths(
    columns: dict[str, npt.NDArray[Any]],
    begins: Numbers,
    first: int,
    last: int,
    clock: Clock,
    numbers: SiteNumbers,
) -> Deaths:
    counted = (columns["born"] >= first) & (columns["died"] < last)
    born, died = columns["born"][counted], columns["died"][counted]
    ends = np.append(begins[1:], max(clock.judged_at, begins[-1] if len(begins) else 0))
    middles = begins / 2 + ends / 2 if len(begins) else np.zeros(0)  # the sum of two may not fit
    times = clock.time(middles) if len(begins) else np.zeros(0)
    stacks = columns["stack_id"][counted]
    return Deaths(
        times=times,
        blocks=columns["blocks"][counted],
        stack=stacks,
        site=numbers.of(stacks).astype(np.int32),
        born_cell=born,
        died_cell=died,
    )
