"""Forecast of growth: the bytes that can still be allocated before a device is full."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ...reading.recorded import RecordedTrace
from .clock import Clock

_POINTS = 120  # as in the chart of the summary
_RECENT_POINTS = 4
_FINE_POINTS = 6000
"""Points of the timeline from which the growth of reserved bytes is read."""
_QUARTERS = 4
_MAX_RATIO = 2.0
"""Maximum ratio of the rate of both quarters to that of the slower one."""
_MIN_GROWTH_SHARE = 0.05
"""Minimum growth of reserved bytes, as a share of the usable bytes, for a forecast by it."""


@dataclass(frozen=True)
class FreeBytes:
    """Bytes that could still be allocated at the end of the judged part of the run."""

    by_allocated: int
    """By the highest allocated bytes."""
    by_reserved: int | None = None
    """By the growth of the reserved bytes; None if they did not grow steadily."""

    def until_full(self, copies: int = 1) -> int:
        """Return the bytes by which memory can grow until the device is full.

        Args:
            copies: Number of copies that are live at once when the memory grows: 2 for `torch.cat`.
        """
        by_allocated = self.by_allocated // copies
        return by_allocated if self.by_reserved is None else min(by_allocated, self.by_reserved)


def estimate_free_bytes(
    trace: RecordedTrace, device: str, clock: Clock, judged_ns: int, live_bytes: int
) -> FreeBytes | None:
    """Return the bytes that could still be allocated at the end of the judged part; None if the capacity is unknown.

    They are the device's memory less what is used outside torch and less the highest allocated bytes shortly before,
    since each unit of the program needs its temporaries again, and less the free memory that live blocks strand at that
    time. Of the rest, new blocks use the same share: what they strand grows, too. If the reserved bytes grow so fast
    that they fill the device earlier, they decide. For "cpu" they are the machine's memory less the resident memory of
    this process: the use of other processes is unknown. Without reports of the driver, they are the device's size less
    the live bytes.
    """
    samples = trace.driver_samples(device)
    is_missing = np.ma.getmaskarray(samples["total_bytes"]) | np.ma.getmaskarray(samples["used_bytes"])
    samples = samples.take(~is_missing)
    if not len(samples):
        size = trace.device_bytes(device)
        return None if size is None else FreeBytes(max(size - live_bytes, 0))
    sample = max(int(np.searchsorted(samples["time_ns"], judged_ns, side="right")) - 1, 0)
    total, used = int(samples["total_bytes"][sample]), int(samples["used_bytes"][sample])
    reserved = samples["reserved_bytes"][sample]
    if reserved is np.ma.masked:
        return FreeBytes(max(total - used, 0))
    # The sample may be old: what others use changes less than what torch reserves.
    usable = total - max(used - int(reserved), 0)
    timeline = trace.timeline(_POINTS, device)
    end = int(np.searchsorted(timeline["time_ns"], judged_ns, side="right"))
    recent = timeline.take(slice(max(end - _RECENT_POINTS, 0), end + 1))
    allocated = max([live_bytes, *map(int, recent["allocated_bytes_max"].tolist())])
    # At the peak of each unit, its temporaries fill a part of what is stranded at other times.
    stranded = min(map(int, recent["stranded_bytes_min"].tolist()), default=0)
    free_bytes = max(usable - allocated - stranded, 0) * allocated // max(allocated + stranded, 1)
    return FreeBytes(free_bytes, _free_bytes_by_reserved_growth(trace, device, clock, usable))


def _free_bytes_by_reserved_growth(trace: RecordedTrace, device: str, clock: Clock, usable: int) -> int | None:
    """Return how many bytes more can be allocated until the reserved bytes reach `usable`, if both grow on as before.

    Free memory that is too small for new requests makes the reserved bytes grow faster than a leak. Segments without a
    block do not count: torch returns them before it runs out of memory. Both must grow in the third and in the last
    quarter of the events, by a share of the device that shows a trend; otherwise returns None. The rate of both
    quarters counts, but at most twice that of the slower one, since one large segment may have been reserved for good.
    """
    timeline = trace.timeline(_FINE_POINTS, device)
    events = np.linspace(clock.begin, clock.judged_at, _QUARTERS + 1).astype(int).tolist()
    begins = np.searchsorted(timeline["time_ns"], [trace.replay.time_before(event + 1) for event in events])
    # An interval that contains the border of two quarters belongs to neither.
    quarters = [slice(first, end - 1) for first, end in itertools.pairwise(begins.tolist())][1:]
    if any(quarter.stop <= quarter.start for quarter in quarters):
        return None
    # At the ends of the intervals: within one, torch may return segments to the driver.
    needed = timeline["reserved_bytes"] - timeline["releasable_bytes"]
    highest = [int(needed[quarter].max()) for quarter in quarters]
    reserved = np.diff(highest)
    allocated = np.diff([int(timeline["allocated_bytes_min"][quarter].min()) for quarter in quarters])
    if min(allocated) <= 0 or min(reserved) <= 0 or reserved.sum() < _MIN_GROWTH_SHARE * usable:
        return None
    reserved_per_byte = min(float(reserved.sum() / allocated.sum()), _MAX_RATIO * float(min(reserved / allocated)))
    return int(max(usable - highest[-1], 0) / reserved_per_byte)
