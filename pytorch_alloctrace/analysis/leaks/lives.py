"""The lives of a device's blocks in the part of the run that is judged: who survived, and who died old.

Times are in units of the clock. Deaths come from the replay's one pass in cells (see csrc/core/replay/long_lives.h), a
few hundredths of the run each; survivors are known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from .clock import Clock, Numbers, Times

LOADING = 0.8
"""A part of the run that keeps more than this share of what it allocates may be loading."""


@dataclass(frozen=True)
class Survivors:
    """The blocks that are live at the judged event and were born in the judged part, in the order of their births."""

    birth: Times
    """In units of the clock."""
    seq: Numbers
    birth_ns: Numbers
    bytes: Numbers
    """Allocated bytes."""
    stack: Numbers
    site: Numbers
    """The line of user code, a number."""


@dataclass(frozen=True)
class Deaths:
    """Blocks that lived longer than a cell and died before the judged event."""

    birth: Times
    age: Times
    blocks: Numbers
    stack: Numbers
    site: Numbers
    born_cell: Numbers
    died_cell: Numbers


@dataclass(frozen=True)
class Lives:
    """The evidence on one device, for one part of the run."""

    device: str
    clock: Clock
    survivors: Survivors
    deaths: Deaths
    borders: Numbers
    """The event with which each cell of the judged part begins."""
    first_cell: int
    cell_length: int
    """Allocations in each cell."""
    allocations: dict[int, int]
    """How many blocks each line, by number, has allocated until the judged event."""
    judged_ns: int

    @property
    def is_loading(self) -> bool:
        """Whether nearly all blocks that were allocated in the judged part are still live, and no steps say that it has
        begun to work: it may be loading."""
        made = sum(self.allocations.values()) - self.first_cell * self.cell_length
        return self.clock.unit != "step" and len(self.survivors.seq) > LOADING * max(made, 1)

    @classmethod
    def of(cls, trace: RecordedTrace, device: str, clock: Clock, numbers: SiteNumbers) -> Lives:
        replay = trace.replay
        evidence = replay.long_lives(device)
        live = replay.live(clock.judged_at + 1, device)
        live = live[(live["birth_seq"] >= clock.begin) & ~live["older"].astype(bool)]
        births = live["birth_seq"].to_numpy(np.int64)
        stacks = live["stack_id"].to_numpy(np.int64)
        survivors = Survivors(
            birth=clock.time(births),
            seq=births,
            birth_ns=live["birth_ns"].to_numpy(np.int64),
            bytes=live["allocated"].to_numpy(np.int64),
            stack=stacks,
            site=numbers.of(stacks),
        )
        begins = evidence.begins.astype(np.int64)
        first = int(np.searchsorted(begins, clock.begin, side="left"))
        # What died in the cell of the judged event may have died after it: it is not counted.
        last = len(begins) if clock.judged_at >= evidence.last_allocation else _cell(begins, clock.judged_at)
        totals = trace.stack_totals(clock.judged_at, device=device)
        by_line = pd.Series(totals["allocations"].to_numpy(np.int64)).groupby(numbers.of(totals["stack_id"])).sum()
        return cls(
            device=device,
            clock=clock,
            survivors=survivors,
            deaths=_deaths(evidence.deaths, begins, first, last, clock, numbers),
            borders=begins[first:last],
            first_cell=first,
            cell_length=evidence.cell_length,
            allocations=dict(zip(by_line.index.tolist(), by_line.tolist(), strict=True)),
            judged_ns=replay.time_before(clock.judged_at + 1),
        )


def _cell(begins: Numbers, event: int) -> int:
    return max(int(np.searchsorted(begins, event, side="right")) - 1, 0)


def _deaths(
    columns: dict[str, npt.NDArray[np.int64]],
    begins: Numbers,
    first: int,
    last: int,
    clock: Clock,
    numbers: SiteNumbers,
) -> Deaths:
    counted = (columns["born"] >= first) & (columns["died"] < last)
    born, died = columns["born"][counted], columns["died"][counted]
    middles = (begins + np.append(begins[1:], max(clock.judged_at, begins[-1] if len(begins) else 0))) / 2
    times = clock.time(middles) if len(begins) else np.zeros(0)
    stacks = columns["stack_id"][counted]
    return Deaths(
        birth=times[born],
        age=times[died] - times[born],
        blocks=columns["blocks"][counted],
        stack=stacks,
        site=numbers.of(stacks),
        born_cell=born,
        died_cell=died,
    )
