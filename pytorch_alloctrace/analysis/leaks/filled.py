"""Lines that held more and more, and then hardly more: a full replay buffer, a cache that has nearly all keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from .doubts import MIN_UNITS
from .leak import SURVIVORS, Doubt, Growth
from .lifetimes import LifetimeEvidence

MIN_BYTES = 16 << 20
MIN_SHARE = 0.1
"""Minimum share of the live bytes."""
MIN_BLOCKS = 12
FILLED_SHARE = 0.95
"""Share of the blocks at the end from which on a line is filled."""
_FROM, _UNTIL = 0.1, 0.85
"""Shares of the run between which a line is filled: earlier it is setup, later the growth may go on."""
_HALFWAY = (0.25, 0.8)
"""Shares of the blocks at the end of which a line has one halfway to being filled: it grew step by step."""
_MIN_AFTER, _MAX_AFTER = 0.85, 1.15
"""The same for any time after it."""


def find_filled_lines(trace: RecordedTrace, lifetimes: LifetimeEvidence) -> Iterator[Growth]:
    """Yield the lines that held more and more blocks until well before the end, and about as many since."""
    survivors, clock = lifetimes.survivors, lifetimes.clock
    if not clock.is_discrete or clock.length + 1 < MIN_UNITS:
        return
    min_bytes = max(MIN_BYTES, MIN_SHARE * lifetimes.live_bytes)
    for site, rows in survivors.rows_of_site.items():
        size = int(survivors.bytes[rows].sum())
        if len(rows) < MIN_BLOCKS or size < min_bytes:
            continue
        filled_at = _find_filled(lifetimes, site)
        sizes = survivors.bytes[rows[np.argsort(survivors.alloc_seqs[rows])]]
        quarter = max(len(sizes) // 4, 1)
        if filled_at is None or sizes[-quarter:].mean() > _MAX_AFTER * sizes[:quarter].mean():
            continue
        stacks = survivors.list_stacks(rows)
        yield Growth(
            doubt=Doubt.FILLED,
            site=Site.of_stack(trace.stacks, stacks[0]),
            stack_ids=tuple(stacks),
            kind=SURVIVORS,
            device=lifetimes.device,
            unit=clock.unit,
            judged_at=clock.judged_at,
            allocated_bytes=size,
            blocks=len(rows),
            arrivals=len(np.unique(np.floor(survivors.alloc_times[rows]))),
            units=round(clock.length) + 1,
            first=float(clock.first_step),
            last=clock.first_step + filled_at,
            block_stacks=tuple(stacks),
        )


def _find_filled(lifetimes: LifetimeEvidence, site: int) -> float | None:
    """Return the time from which on a line held about as many blocks as at the end; None if it is not filled."""
    times, counts = _count_blocks(lifetimes, site)
    length, final = lifetimes.clock.length, counts[-1]
    filled = int(np.argmax(counts >= FILLED_SHARE * final))
    filled_at = float(times[filled])
    halfway = float(np.interp(filled_at / 2, times, counts)) / final
    after = counts[filled:] / final
    is_filled = (
        _FROM * length <= filled_at <= _UNTIL * length
        and _HALFWAY[0] <= halfway <= _HALFWAY[1]
        and after.min() >= _MIN_AFTER
        and after.max() <= _MAX_AFTER
    )
    return filled_at if is_filled else None


def _count_blocks(lifetimes: LifetimeEvidence, site: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the times of the cells' middles and of the end, and the number of live blocks of a line at each."""
    survivors, freed = lifetimes.survivors, lifetimes.freed_blocks
    times = np.append(freed.cell_times, lifetimes.clock.length)
    alloc_times = np.sort(survivors.alloc_times[survivors.rows_of_site[site]])
    counts = np.searchsorted(alloc_times, times, side="right").astype(np.float64)
    rows = freed.rows_of_site.get(site, np.zeros(0, np.int64))
    changes = np.zeros(len(times) + 1)
    np.add.at(changes, freed.alloc_cell[rows], freed.counts[rows])
    np.subtract.at(changes, freed.free_cell[rows], freed.counts[rows])
    return times, counts + np.cumsum(changes)[: len(times)]
