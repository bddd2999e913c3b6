"""Progress of a run as the share of its allocations: unlike time, it stands still while a program loads or waits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..reading.recorded import RecordedTrace


class AllocationShare:
    """Allocations of a device, exact at about 256 events, else interpolated (csrc/core/replay/long_lifetimes.h)."""

    def __init__(self, trace: RecordedTrace, device: str) -> None:
        cells = trace.replay.long_lifetimes(device)
        begins = cells.begins.astype(np.float64)
        self.total = cells.allocations
        self.last = cells.last_allocation
        self.events = np.append(begins, cells.last_allocation)
        """Events at which the number of allocations, `counts`, is exact, ascending."""
        self.counts = np.append(np.arange(len(begins), dtype=np.float64) * cells.cell_length, cells.allocations)
        self._trace_begin = trace.begin_ns
        self._times = np.append(cells.begins_ns, cells.last_ns) - trace.begin_ns

    def allocations(self, events: npt.ArrayLike) -> npt.NDArray[np.float64]:
        counts: npt.NDArray[np.float64] = np.interp(np.asarray(events, np.float64), self.events, self.counts)
        return counts

    def share(self, events: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return self.allocations(events) / max(self.total, 1)

    def share_until(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the share of all allocations up to each time, in nanoseconds since 1970."""
        counts: npt.NDArray[np.float64] = np.interp(times_ns - self._trace_begin, self._times, self.counts)
        return counts / max(self.total, 1)
