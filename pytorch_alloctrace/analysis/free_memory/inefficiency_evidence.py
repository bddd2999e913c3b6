"""Evidence for inefficiencies: the timeline up to the end of the work, and the memory at its worst positions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._replay import SMALL_SEGMENT
from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ...reading.table import PENDING_FREE, Table
from ..allocation_share import AllocationShare
from ..leaks.clock import Clock
from ..walk import Visit, Walk
from .fragmentation import Fragmentation, fragmentation_at
from .inefficiency import MIN_BYTES, PeakRequest, is_notable

MIN_LOST_SHARE, MIN_LOST_SHARE_OF_FULL = 0.3, 0.2
"""Minimum share of the peak of reserved bytes that fragmentation takes; the second value if the peak is
`FULL_SHARE` of the device. Ordinary training loses up to a fifth."""
FULL_SHARE = 0.75
MAX_EVENTS_OF_REQUEST = 4096
"""Maximum number of events between the last segment of the peak and the allocation that it serves."""
HALF = 0.5
"""Share of the run, in allocations."""
_POINTS = 2000
_ALLOC = KINDS.index("alloc")


class InefficiencyEvidence:
    """Evidence for inefficiencies: the timeline up to the end of the work, and the memory at its worst positions."""

    def __init__(self, walk: Walk, trace: RecordedTrace, device: str, clocks: Sequence[Clock]) -> None:
        self.trace = trace
        self.device = device
        self._clocks = clocks
        self.fragmentation: Visit[Fragmentation] | None = None
        """Fragmentation at the last position with at least the median of stranded bytes."""
        self.at_peak: Visit[Fragmentation] | None = None
        """Fragmentation after the request at the peak of reserved bytes, if notably less was ever active."""
        self.peak_request: PeakRequest | None = None
        self.max_active_bytes = 0
        self.min_lost_share = MIN_LOST_SHARE
        self.pending: Visit[Table] | None = None
        self.peak: Visit[Table] | None = None
        timeline = self.run = trace.timeline(_POINTS, device)
        self.reports_segments = len(timeline) > 0 and not np.ma.getmaskarray(timeline["reserved_bytes"]).all()
        if not self.reports_segments:
            return
        end_of_work = max(clock.judged_at for clock in clocks)
        end_ns = trace.time_ns(end_of_work)
        end_times = np.append(timeline["time_ns"][1:], trace.end_ns)
        # The interval in which the work ends is left out: its last values are those after the work.
        intervals = max(int((end_times <= end_ns).sum()), 1)
        self._end_times = end_times
        self.timeline, end_times = timeline.head(intervals), end_times[:intervals]
        self.end_ns = int(end_times[-1])
        self._allocations = AllocationShare(trace, device)
        self._work_share = max(float(self._allocations.share(end_of_work)), 1e-9)
        self.allocation_share = np.minimum(self._allocations.share_until(end_times) / self._work_share, 1.0)
        """Share of the device's allocations by the end of each interval."""
        self._visit_peak_of_reserved(walk, int(np.ma.filled(timeline["active_bytes_max"], 0).max()))
        if (interval := self._find_fragmented_interval()) is not None:
            seq = self.end_of(interval)
            self.fragmentation = walk.visit(seq + 1, partial(fragmentation_at, trace, seq, device=device))
            self.stranded = int(_fill(timeline["stranded_bytes"])[interval])
            self.reserved = int(_fill(timeline["reserved_bytes"])[interval])
        self.unused_bytes = self._find_unused_bytes()
        self.at_end_of_work: Visit[Fragmentation] | None = None
        self.stacks_after_peak: Visit[Table] | None = None
        is_judged = any(clock.is_discrete and not clock.is_too_short for clock in clocks)
        if is_judged and is_notable(self.unused_bytes, int(self.values("reserved_bytes")[-1])):
            self.at_end_of_work = walk.visit(
                end_of_work + 1, partial(fragmentation_at, trace, end_of_work, device=device)
            )
        pending_bytes = self.timeline["active_bytes"] - self.timeline["allocated_bytes"]
        self.pending_bytes = pending_bytes
        # On a single stream, a block is pending only between the two events of an ordinary free.
        # In a snapshot, a stream that only uses memory is unknown.
        may_wait = trace.locations.count_streams(device) > 1 or trace.ending.get("reason") == "converted"
        if may_wait and is_notable(int(pending_bytes.max()), int(self.timeline["reserved_bytes_max"].max())):
            seq = self.end_of(int(pending_bytes.argmax()))
            self.pending = walk.visit(seq + 1, partial(_pending_blocks, trace, seq + 1, device))
        peak = trace.replay.peak("allocated", device)
        if peak is not None:
            self.peak = walk.visit(peak.seq + 1, partial(trace.replay.stacks, peak.seq + 1, device))
            if self.at_end_of_work is not None:
                until = end_of_work + 1 if peak.seq <= end_of_work else trace.end_seq
                self.stacks_after_peak = walk.visit(until, partial(trace.replay.stacks, until, device))

    def _visit_peak_of_reserved(self, walk: Walk, max_active: int) -> None:
        peak = self.trace.replay.peak("reserved", self.device)
        if peak is None:
            return
        if peak.bytes >= FULL_SHARE * (self.trace.device_bytes(self.device) or np.inf):
            self.min_lost_share = MIN_LOST_SHARE_OF_FULL
        if not is_notable(peak.bytes - max_active, peak.bytes, self.min_lost_share):
            return
        segment = _find_peak_segment(self.trace, self.device, peak.seq)
        self.peak_request = _find_peak_request(self.trace, self.device, segment)
        if self.peak_request is not None:
            self.max_active_bytes, seq = max_active, self.peak_request.seq
            self.at_peak = walk.visit(seq + 1, partial(fragmentation_at, self.trace, seq, device=self.device))

    def _find_unused_bytes(self) -> int:
        """Return the minimum of releasable bytes in the second half of the run."""
        lowest, share = self.values("releasable_bytes_min"), self.allocation_share
        halves = (lowest[share >= HALF], lowest[len(lowest) // 2 :])
        return max(int(half.min()) if len(half) else 0 for half in halves)

    def _find_fragmented_interval(self) -> int | None:
        """Return the last interval of the run, also after the work, with at least the median of stranded bytes."""
        is_used = _fill(self.run["reserved_bytes_max"]) > 0
        if not is_used.any():
            return None
        min_stranded = _fill(self.run["stranded_bytes_min"])
        is_work = np.arange(len(is_used)) < len(self.timeline)
        allocation_shares = np.diff(self._allocations.share_until(self._end_times), prepend=0.0)
        weights = (allocation_shares, np.ones(len(is_used)), is_work.astype(np.float64))
        median = max(_weighted_median(min_stranded[is_used], weight[is_used]) for weight in weights)
        if median < MIN_BYTES:
            return None
        return int(np.flatnonzero(_fill(self.run["stranded_bytes"]) >= median)[-1])

    def find_unit_age_ns(self, event: int) -> int:
        """Return the time since the last step or iteration before an event began or ended; 0 if there are none."""
        clocks = [clock for clock in self._clocks if clock.begin <= event and clock.is_discrete]
        if not clocks:
            return 0
        clock = clocks[-1]
        unit = int(np.searchsorted(clock.ends, event)) - 1
        begin = int(clock.ends[unit]) if unit >= 0 else clock.begin
        return self.trace.time_ns(event) - self.trace.time_ns(begin)

    def share_at(self, event: int) -> float:
        """Return the share of the device's allocations up to an event."""
        return float(self._allocations.share(event)) / self._work_share

    def values(self, name: str) -> npt.NDArray[np.int64]:
        """Return a column of the timeline, 0 where it is unknown."""
        return _fill(self.timeline[name])

    def end_of(self, interval: int) -> int:
        """Return the last event up to the end of an interval of the timeline."""
        return self.trace.first_event_after_time(int(self._end_times[interval])) - 1


def _find_peak_segment(trace: RecordedTrace, device: str, peak_seq: int) -> int:
    """Return the event of the last segment up to the peak of reserved bytes that is not of the small pool.

    A segment of the small pool, of 2 MiB, is often the last, and its request has no part in the fragmentation. If there
    is no other segment, the event of the peak is returned.
    """
    seq, kinds = peak_seq, ("segment_alloc", "segment_map")
    for events in trace.iter_events(Range(trace.integrity.compacted_until, peak_seq + 1), kinds, with_state=False):
        is_large = (trace.devices_of(events) == device) & (events["requested_bytes"] > SMALL_SEGMENT)
        seq = int(events["seq"][is_large].max(initial=0)) or seq
    return seq


def _find_peak_request(trace: RecordedTrace, device: str, peak_seq: int) -> PeakRequest | None:
    """Return the allocation that the segment at the peak of reserved bytes serves.

    None if the peak is no segment event, as in a recording that began with the memory, or lies in a compacted part.
    """
    if peak_seq < trace.integrity.compacted_until:
        return None
    within = Range(peak_seq, min(peak_seq + MAX_EVENTS_OF_REQUEST, trace.end_seq))
    for events in trace.iter_events(within, ("alloc", "segment_alloc", "segment_map"), with_state=False):
        is_of_device = trace.devices_of(events) == device
        if int(events["seq"][0]) != peak_seq:
            return None
        for row in events.take(is_of_device & (events["kind"] == _ALLOC)).head(1).rows():
            _, stream, pool = trace.locations.row(row["location"])
            seq, size = int(row["seq"]), int(row["requested_bytes"])
            [event] = trace.iter_events(Range(seq, seq + 1))
            stack = int(event["forward_stack_id"][0] or row["stack_id"])
            return PeakRequest(seq, size, stream, pool, stack, Site.of_stack(trace.stacks, stack))
    return None


def _pending_blocks(trace: RecordedTrace, until: int, device: str) -> Table:
    blocks = trace.replay.blocks(until, device)
    return blocks.take(blocks["state"] == PENDING_FREE).select("stack_id", "block_bytes")


def _weighted_median(values: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> int:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(below, below[-1] / 2)])


def _fill(column: Any) -> npt.NDArray[np.int64]:
    """Return a column of a timeline, 0 where it is unknown."""
    return np.asarray(np.ma.filled(column, 0))
