"""Models that stay on a device after their last call.

A module is idle if no call of the outermost module that contains it, of those that the program calls, allocated after
the peak and in the last third of the work, by time or by allocations of the device. The memory of a module is that of
its parameters and buffers for which an object scan recorded the module; it is summed by the line that built the model.
Programs that capture CUDA graphs use models without calls: they are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ...reading.names import ROLES
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ...reading.table import Table, sums
from ..allocation_share import AllocationShare
from ..leaks.clock import Clock
from ..walk import Visit, Walk
from .roles import sum_by_building_line

MIN_SHARE = 0.1
"""Minimum share of the peak of an idle model."""
IDLE_SHARE = 1 / 3
"""Share of a run, by time or by allocations, in which an idle model is not called."""


@dataclass(frozen=True)
class IdleModel:
    site: Site
    """Line that built the model or moved it to the device."""
    bytes: int
    """Requested bytes of its idle modules at the peak."""


class IdleModelEvidence:
    """Memory and calls of models at the positions that `find` compares; the walk must be made before."""

    def __init__(self, walk: Walk, trace: RecordedTrace, device: str, clocks: Sequence[Clock]) -> None:
        self._trace = trace
        peak = trace.replay.peak("allocated", device)
        self._visits: list[Visit[Table]] = []
        is_named = trace.stacks.has_modules and trace.replay.named_blocks()["module"].any()
        if peak is None or not is_named or "capture" in trace.kind_counts:
            return
        shares, end = AllocationShare(trace, device), max(clock.judged_at for clock in clocks)
        work_share = 1 - IDLE_SHARE
        by_allocations = int(np.interp(work_share * shares.allocations(end), shares.counts, shares.events))
        time_ns = trace.begin_ns + round(work_share * (trace.time_ns(end) - trace.begin_ns))
        by_time = max(trace.first_event_after_time(time_ns) - 1, 0)
        self._live = walk.visit(peak.seq + 1, partial(trace.replay.live, peak.seq + 1, device))
        for event in (peak.seq, by_allocations, by_time, end):
            self._visits.append(walk.visit(event + 1, partial(trace.replay.stacks, event + 1, device)))

    def find(self) -> IdleModel | None:
        """Return the model with the most idle bytes at the peak, if they are `MIN_SHARE` of it."""
        if not self._visits or any(visit.is_compacted for visit in (self._live, *self._visits)):
            return None
        trace, live, modules = self._trace, self._live.result, self._trace.stacks.modules
        of_blocks = trace.block_modules(live["address"].tolist(), live["alloc_seq"].tolist())
        roots = np.array([modules.root_of(module) if module else 0 for module in of_blocks], np.int64)
        count = int(roots.max(initial=0)) + 1
        at_peak, *at_last_thirds, at_end = (self._count_calls(visit.result, count) for visit in self._visits)
        is_idle = (at_peak == at_end) & np.any([calls == at_end for calls in at_last_thirds], axis=0) & (at_end > 0)
        is_idle[0] = False
        is_weight = np.isin(live["role"], [ROLES.index("parameter"), ROLES.index("buffer")])
        bytes_by_line = sum_by_building_line(trace.stacks, live.take(is_idle[roots] & is_weight))
        (site, _), size = max(bytes_by_line.items(), key=lambda item: item[1], default=((None, False), 0))
        is_large = size >= MIN_SHARE * int(live["requested_bytes"].sum())
        return IdleModel(site, size) if site is not None and is_large else None

    def _count_calls(self, totals: Table, count: int) -> npt.NDArray[np.int64]:
        """Return by outermost module the number of allocations in its calls."""
        modules = self._trace.stacks.modules
        called = modules.called(totals["stack_id"].astype(np.int64))
        root_of = {module: modules.root_of(module) for module in np.unique(called).tolist()}
        roots = np.array([root_of[module] for module in called.tolist()], np.int64)
        is_known = roots < count
        return sums(roots[is_known], totals["allocations"][is_known].astype(np.int64), count)
