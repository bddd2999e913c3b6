"""Accumulation: memory of many steps that is held at the peak and then released at once, as at the end of an epoch.

It is no leak, but it makes the peak. Lines accumulate if the blocks that they hold at the peak were allocated in at
least `MIN_ARRIVALS` steps or iterations, at least `MIN_FREED_SHARE` of them are freed before leaks are judged, and
together the lines hold `MIN_SHARE` of the peak. The frees are spread over a much shorter time than the allocations: a
sliding window, such as a full queue, frees its blocks one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...reading.sites import Site
from .call_paths import CallTree, find_line_to_inspect
from .doubts import MIN_ARRIVALS
from .leak import SURVIVORS, Doubt, Growth
from .lifetimes import LifetimeEvidence
from .referrers import find_holder

if TYPE_CHECKING:
    from ..evidence import PartEvidence

MIN_SHARE = 0.25
MIN_FREED_SHARE = 0.3
MAX_FREE_SPREAD = 0.25
"""Maximum ratio of the time in which the middle 80 % of the blocks are freed to that in which they are allocated."""
_MIDDLE = (10, 90)


def find_accumulation(part: PartEvidence, lifetimes: LifetimeEvidence) -> Growth | None:
    """Return the accumulation at the peak of a device; None if there is none, or if the peak is not in this part."""
    device, clock = part.device, part.clock
    peak = device.trace.replay.peak("allocated", device.device)
    if peak is None or device.at_peak is None or device.at_peak.is_compacted or not clock.is_discrete:
        return None
    if not clock.begin <= peak.seq <= clock.judged_at:
        return None
    live = device.at_peak.result
    is_old = ~live["older"] & (live["alloc_seq"] >= clock.begin)
    is_old &= clock.units_at(live["alloc_seq"]) < clock.units_at([peak.seq])[0]
    is_kept = np.isin(live["alloc_seq"], part.lifetimes.result["alloc_seq"])
    lines, units = device.numbers.of(live["stack_id"]), clock.units_at(live["alloc_seq"])
    rows = np.zeros(len(live), np.bool_)
    for line in np.unique(lines[is_old & ~is_kept]).tolist():
        is_of_line = is_old & (lines == line)
        if (
            len(np.unique(units[is_of_line])) >= MIN_ARRIVALS
            and is_kept[is_of_line].mean() <= 1 - MIN_FREED_SHARE
            and _are_freed_together(lifetimes, line, units[is_of_line], peak.seq)
        ):
            rows |= is_of_line
    total = int(live["block_bytes"][rows].sum())
    if total < max(MIN_SHARE * peak.bytes, 1):
        return None
    index = device.trace.stacks
    stacks, stack_of_row = np.unique(index.same[live["stack_id"][rows]], return_inverse=True)
    stack_bytes = np.zeros(len(stacks), np.int64)
    np.add.at(stack_bytes, stack_of_row, live["block_bytes"][rows])
    tree = CallTree(index, dict(zip(stacks.tolist(), stack_bytes.tolist(), strict=True)))
    stack_ids = tuple(stacks[np.argsort(-stack_bytes, kind="stable")].tolist())
    return Growth(
        doubt=Doubt.ACCUMULATED,
        site=find_line_to_inspect(tree) or Site.of_stack(index, stack_ids[0]),
        stack_ids=stack_ids,
        kind=SURVIVORS,
        device=device.device,
        unit=clock.unit,
        judged_at=peak.seq,
        allocated_bytes=total,
        blocks=int(rows.sum()),
        arrivals=len(np.unique(units[rows])),
        units=round(clock.length) + 1,
        first=clock.first_step + float(units[rows].min()),
        last=clock.first_step + float(units[rows].max()),
        holder=find_holder(device, stack_ids, live["alloc_seq"][rows]),
        peak_bytes=peak.bytes,
    )


def _are_freed_together(lifetimes: LifetimeEvidence, line: int, units: npt.NDArray[np.float64], peak_seq: int) -> bool:
    """Return whether the blocks of a line that are live at the peak are freed in a short time."""
    freed = lifetimes.freed_blocks
    rows = freed.rows_of_site.get(line)
    if rows is None:
        return False
    peak_cell = lifetimes.first_cell + int(np.searchsorted(lifetimes.borders, peak_seq, side="right")) - 1
    rows = rows[(freed.alloc_cell[rows] <= peak_cell) & (freed.free_cell[rows] >= peak_cell)]
    if not len(rows):
        return False
    free_times = np.repeat(freed.cell_times[freed.free_cell[rows]], freed.counts[rows])
    freed_in, allocated_in = (float(np.ptp(np.percentile(times, _MIDDLE))) for times in (free_times, units))
    return freed_in <= MAX_FREE_SPREAD * allocated_in
