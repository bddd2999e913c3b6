"""Share of a device's work before an event, counted in allocations.

Wall-clock time also passes while a program loads or waits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..reading.recorded import RecordedTrace


class AllocationShare:
    """Allocation counts of one device, which the trace must contain.

    Exact at about 256 events and interpolated between them (see csrc/core/replay/long_lives.h).
    """

    def __init__(self, trace: RecordedTrace, device: str) -> None:
        cells = trace.replay.long_lives(device)
        begins = cells.begins.astype(np.float64)
        self.total = cells.allocations
        """Number of allocations in the whole trace."""
        self.last = cells.last_allocation
        """Event number of the last allocation."""
        self.events = np.append(begins, cells.last_allocation)
        """Event numbers at which `counts` is exact, ascending."""
        self.counts = np.append(np.arange(len(begins), dtype=np.float64) * cells.cell_length, cells.allocations)
        """Number of allocations up to each of `events`."""
        self._trace_begin = trace.begin_ns
        self._times = np.append(cells.begins_ns, cells.last_ns) - trace.begin_ns

    def allocations(self, events: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the number of allocations up to each event."""
        counts: npt.NDArray[np.float64] = np.interp(np.asarray(events, np.float64), self.events, self.counts)
        return counts

    def share(self, events: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the share of all allocations up to each event."""
        return self.allocations(events) / max(self.total, 1)

    def share_until(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the share of all allocations up to each time, in nanoseconds since 1970."""
        counts: npt.NDArray[np.float64] = np.interp(times_ns - self._trace_begin, self._times, self.counts)
        return counts / max(self.total, 1)
