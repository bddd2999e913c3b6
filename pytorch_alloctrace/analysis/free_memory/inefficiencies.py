"""Inefficiencies of a CUDA device's memory, other than leaks (`leaks`) and failed allocations (`oom`).

Each has a number of bytes at stake, at least `MIN_BYTES` and `MIN_SHARE` of the reserved bytes (outside: of the device;
fragmentation at the peak: `MIN_LOST_SHARE`): torch's segments of 2 and 20 MiB cause a few in every program. Half of the
run is half of its time or of its allocations, whichever shows more, since a program may load data for half of the time.
The run ends where leaks are judged (`leaks.clock`): afterwards main() has returned and freed its memory.

    fragmentation  peak of reserved bytes - peak of active bytes - largest pool of a CUDA graph, whose replays use its
                   free memory: without fragmentation the rest would have been enough. `unusable` is the free memory
                   that the request at the peak could not use, by cause: the last for which torch reserved more than a
                   segment of the small pool.
                   Else stranded bytes at the last position of the trace with at least their median over the run, since
                   every program strands some within a step
    cache          releasable bytes that were not used in the second half of the run, outside private pools and unless
                   fragmentation explains them or the run is too short for leaks to be judged; `is_warmup` if last used
                   in the first quarter
    rounding       allocated - requested bytes at the peak of allocated bytes
    pending        maximum bytes, over the ends of timeline intervals, that are freed but awaited by another stream
    churn          bytes taken from the driver in the second half of the run, compared with the maximum reserved in it.
                   Estimated from timeline intervals, usually too low
    outside        maximum bytes used outside torch (contexts, libraries, other processes) from `MIN_OUTSIDE_BYTES` on:
                   a context and CUDA's libraries use half a GiB and more
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._replay import SMALL_SEGMENT
from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteNumbers
from ...reading.table import PENDING_FREE, Table, sums
from ..allocation_share import AllocationShare
from ..leaks.clock import Clock, Clocks
from ..walk import Visit, Walk
from .fragmentation import Fragmentation, fragmentation_at

MIN_SHARE = 0.2
MIN_BYTES = 64 << 20
MIN_OUTSIDE_BYTES = 1 << 30
MIN_LOST_SHARE, MIN_LOST_SHARE_OF_FULL = 0.3, 0.2
"""Minimum share of the peak of reserved bytes that fragmentation takes; the second value if the peak is
`FULL_SHARE` of the device. Ordinary training loses up to a fifth."""
FULL_SHARE = 0.75
MIN_CAUSE_SHARE = 0.1
"""Minimum share of the unusable bytes at the peak for a cause to be named."""
MAX_EVENTS_OF_REQUEST = 4096
"""Maximum number of events between the last segment of the peak and the allocation that it serves."""
HALF, QUARTER = 0.5, 0.25
"""Shares of the run, in allocations."""
MIN_CHURN = 3.0
"""Minimum ratio of bytes taken from the driver in half a run to the maximum reserved in it."""
_POINTS = 2000
_MAX_PINNING_LINES = 5
_MIN_OLDER_SHARE = 0.25
"""Minimum of what an older line strands, as a share of the first line, for it to be named instead."""
_ALLOC = KINDS.index("alloc")
_GRAPHS_FILE = "torch/cuda/graphs.py"


class Cause(enum.Enum):
    """Reason why a request could not use free memory."""

    PINNED = "pinned"
    """It lies next to live blocks."""
    SPLIT_LIMIT = "split limit"
    """It is in pieces from max_split_size on, and the request is smaller."""
    SIZES = "sizes"
    """It is in wholly free segments of other sizes."""
    STREAMS = "streams"
    """It was freed on other streams."""
    GRAPHS = "graphs"
    """It belongs to the pools of CUDA graphs, of which the largest pool would be enough."""
    POOLS = "pools"
    """It belongs to other private pools (MemPool)."""
    DEFAULT_POOL = "default pool"
    """It belongs to the default pool, and the request to a private pool."""


@dataclass(frozen=True)
class UnusableMemory:
    """Free memory that a request could not use, for one reason."""

    cause: Cause
    bytes: int
    count: int = 0
    """Number of blocks of `site` that pin it, of free pieces, of streams, or of private pools."""
    total_bytes: int = 0
    """Bytes of these blocks, pieces, or of all segments of these streams or pools."""
    site: Site | None = None
    """Line whose blocks pin the most, or that used most of the private pools first; None if unknown."""
    stack_id: int = 0
    site_bytes: int = 0
    """Bytes that the blocks of `site` pin."""
    largest_bytes: int = 0
    """Bytes of the largest free piece."""
    is_of_step: bool = False
    """True if the blocks of `site` that pin it are allocated and freed within the step of the request."""


@dataclass(frozen=True)
class PeakRequest:
    """Request for which torch reserved the peak of reserved bytes."""

    seq: int
    """Event number of the allocation."""
    requested_bytes: int
    stream: int
    pool: tuple[int, int]
    stack_id: int
    site: Site


@dataclass(frozen=True)
class Inefficiency:
    """One inefficiency of a device. Sizes are bytes of blocks, after rounding."""

    kind: str
    """One of fragmentation, cache, rounding, pending, churn, outside, garbage (see `garbage_cycles`), autocast (see
    `autocast_cache`), unused_graph (see `unused_graph`), unused_gradients (see `unused_gradients`)."""
    device: str
    bytes: int
    total_bytes: int
    """Reserved bytes at that time; for outside, the bytes of the device."""
    seconds: float
    """Seconds from the beginning of the recording. For cache: when the bytes were last used."""
    site: Site | None = None
    """Line with the largest part; None if there is none, or if the time is in a compacted part."""
    stack_id: int = 0
    site_bytes: int = 0
    """Bytes of this line: for fragmentation the bytes that its blocks pin, else its part of the bytes at stake."""
    figures: dict[str, float] = field(default_factory=dict)
    """fragmentation by CUDA graphs that are captured in the second half of the run: graphs_until_full, the number of
    further graphs that the device has room for; cache: is_warmup (0, 1); pending: byte_seconds; churn: times, and
    calls, the number of calls of empty_cache.
    """
    unusable: tuple[UnusableMemory, ...] = ()
    """fragmentation: the free memory by cause, the most bytes first; empty in a compacted part of the trace."""
    request: PeakRequest | None = None
    """fragmentation: the request at the peak of reserved bytes; None if the bytes are stranded ones."""
    max_split_size: int = 0
    """fragmentation: the setting at that time, in bytes; 0: no limit."""


def find_inefficiencies(trace: RecordedTrace, device: str) -> tuple[Inefficiency, ...]:
    """Return the inefficiencies of a device, most bytes first; none if its allocator reports no segments."""
    walk = Walk(trace)
    evidence = InefficiencyEvidence(walk, trace, device, tuple(Clocks(trace, device)))
    walk.make()
    return inefficiencies_of(evidence)


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
        if is_judged and _is_notable(self.unused_bytes, int(self.values("reserved_bytes")[-1])):
            self.at_end_of_work = walk.visit(
                end_of_work + 1, partial(fragmentation_at, trace, end_of_work, device=device)
            )
        pending_bytes = self.timeline["active_bytes"] - self.timeline["allocated_bytes"]
        self.pending_bytes = pending_bytes
        # On a single stream, a block is pending only between the two events of an ordinary free.
        # In a snapshot, a stream that only uses memory is unknown.
        may_wait = trace.locations.count_streams(device) > 1 or trace.ending.get("reason") == "converted"
        if may_wait and _is_notable(int(pending_bytes.max()), int(self.timeline["reserved_bytes_max"].max())):
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
        if not _is_notable(peak.bytes - max_active, peak.bytes, self.min_lost_share):
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


def _fill(column: Any) -> npt.NDArray[np.int64]:
    """Return a column of a timeline, 0 where it is unknown."""
    return np.asarray(np.ma.filled(column, 0))


def inefficiencies_of(evidence: InefficiencyEvidence) -> tuple[Inefficiency, ...]:
    if not evidence.reports_segments:
        return ()
    fragmentation = [*_judge_fragmentation(evidence)]
    inefficiencies = [
        *_judge_rounding(evidence),
        *fragmentation,
        *_judge_cache(evidence, fragmentation),
        *_judge_pending(evidence),
        *_judge_churn(evidence),
        *_judge_outside(evidence),
    ]
    return tuple(sorted(inefficiencies, key=lambda inefficiency: -inefficiency.bytes))


def _is_notable(size: int, total: int, min_share: float = MIN_SHARE) -> bool:
    return size >= MIN_BYTES and size >= min_share * total


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


def _judge_fragmentation(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.at_peak is not None and not evidence.at_peak.is_compacted:
        explained = _explain_peak(evidence, evidence.at_peak.result)
        if explained is not None:
            yield explained
            return
    if evidence.fragmentation is None:
        return
    trace, device, seq = evidence.trace, evidence.device, evidence.fragmentation.until - 1
    seconds = _elapsed_s(trace, trace.time_ns(seq))
    if evidence.fragmentation.is_compacted:
        if _is_notable(evidence.stranded, evidence.reserved):
            yield Inefficiency("fragmentation", device, evidence.stranded, evidence.reserved, seconds)
        return
    worst = evidence.fragmentation.result
    pools = _PrivatePools(trace, worst, seq)
    part = worst.part(~pools.are_segments_of(pools.of_graphs))
    if not len(part.pinners_by_line):
        return  # every segment is mostly full: no block is a pinner
    pinned = _describe_pinned(trace, part, evidence.find_unit_age_ns(seq))
    if not _is_notable(pinned.bytes, worst.reserved_bytes):
        return
    yield Inefficiency(
        *("fragmentation", device, pinned.bytes, worst.reserved_bytes, seconds),
        site=pinned.site,
        stack_id=pinned.stack_id,
        site_bytes=pinned.site_bytes,
        unusable=(pinned,),
    )


def _describe_pinned(trace: RecordedTrace, fragmentation: Fragmentation, unit_age_ns: int = 0) -> UnusableMemory:
    """Return what pins memory, with the line that strands the most.

    Blocks that are younger than the current step or iteration are freed soon. If all blocks of that line are, an older
    line that strands a quarter as much takes its place, or the main line of the live bytes beside stranded memory.
    """
    lines = [*fragmentation.pinners_by_line.head(_MAX_PINNING_LINES).rows()]
    min_bytes = _MIN_OLDER_SHARE * lines[0]["stranded_bytes"] if lines else 0
    # Blocks older than the recording have no age.
    older = [line for line in lines if line["oldest_age_ns"] is None or line["oldest_age_ns"] >= unit_age_ns]
    top_line = next((line for line in older if line["stranded_bytes"] >= min_bytes), None)
    main_line = fragmentation.main_line if top_line is None else None
    if main_line is not None:  # its segments are mostly in use
        return UnusableMemory(
            Cause.PINNED,
            fragmentation.stranded_bytes,
            count=main_line.blocks,
            total_bytes=main_line.bytes,
            site=main_line.site,
            stack_id=main_line.stack_id,
        )
    top_line = top_line or next(iter(lines), None)
    if top_line is None:
        return UnusableMemory(Cause.PINNED, fragmentation.stranded_bytes)
    stack = int(top_line["stack_id"])
    return UnusableMemory(
        Cause.PINNED,
        fragmentation.stranded_bytes,
        count=int(top_line["blocks"]),
        total_bytes=int(top_line["allocated_bytes"]),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(top_line["stranded_bytes"]),
    )


def _are_of_step(trace: RecordedTrace, here: Fragmentation, stack: int, request: PeakRequest) -> bool:
    """Return whether a line's blocks that pin memory at a request are allocated and freed within its step.

    stack: A stack of the line.
    """
    ends, lines = trace.positions.step_ends, trace.stacks.group("line")
    after = int(np.searchsorted(ends, request.seq))
    if after == len(ends):
        return False
    own = here.pinners.take(lines[here.pinners["stack_id"]] == lines[stack])
    # Those of blocks older than the recording are masked.
    alloc_seqs = np.ma.filled(own["alloc_seq"], -1)
    begin = int(ends[after - 1]) if after else -1
    later = trace.replay.live(int(ends[after]), here.device, np.unique(own["stack_id"]).tolist())
    return bool((alloc_seqs > begin).all()) and not np.isin(alloc_seqs, later["alloc_seq"]).any()


def _explain_peak(evidence: InefficiencyEvidence, at_peak: Fragmentation) -> Inefficiency | None:
    """Return the fragmentation at the peak of reserved bytes, with its causes; None if it is not notable."""
    request, trace = evidence.peak_request, evidence.trace
    assert request is not None
    pools = _PrivatePools(trace, at_peak, request.seq)
    unneeded = at_peak.reserved_bytes - evidence.max_active_bytes - pools.largest_graph_bytes
    if not _is_notable(unneeded, at_peak.reserved_bytes, evidence.min_lost_share):
        return None
    causes = [*_list_causes(trace, at_peak, request, pools)]
    min_bytes = MIN_CAUSE_SHARE * sum(part.bytes for part in causes)
    causes = sorted(
        (part for part in causes if part.bytes >= max(min_bytes, 1) and (part.cause != Cause.PINNED or part.site)),
        key=lambda part: -part.bytes,
    )
    if not causes:
        return None
    stack = causes[0].stack_id or request.stack_id
    figures: dict[str, float] = {}
    device_bytes = trace.device_bytes(evidence.device)
    are_graphs_growing = evidence.share_at(pools.last_graph_event) >= HALF
    if causes[0].cause == Cause.GRAPHS and are_graphs_growing and device_bytes is not None:
        pool_bytes = causes[0].total_bytes / causes[0].count
        figures["graphs_until_full"] = max(device_bytes - at_peak.reserved_bytes, 0) // pool_bytes
    return Inefficiency(
        *("fragmentation", evidence.device, unneeded, at_peak.reserved_bytes),
        _elapsed_s(trace, trace.time_ns(request.seq)),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=causes[0].site_bytes,
        figures=figures,
        unusable=tuple(causes),
        request=request,
        max_split_size=at_peak.settings.max_split_size or 0,
    )


class _PrivatePools:
    """Private pools with segments at a position, and the lines that used them first.

    The free memory of a CUDA graph's pool is not lost: replays of the graph use it.
    """

    def __init__(self, trace: RecordedTrace, fragmentation: Fragmentation, until: int) -> None:
        self._trace = trace
        segments = fragmentation.segments
        self.of_segments: list[tuple[int, int]] = [tuple(pool) for pool in segments["segment_pool_id"].tolist()]
        self._first_uses = self._find_first_uses(fragmentation.device, until) if {*self.of_segments} - {(0, 0)} else {}
        self.of_graphs = {pool for pool in {*self.of_segments} - {(0, 0)} if self._is_of_graph(pool)}
        free_by_pool = dict.fromkeys(self.of_graphs, 0)
        for pool, free in zip(self.of_segments, segments["free_bytes"].tolist(), strict=True):
            if pool in free_by_pool:
                free_by_pool[pool] += free
        self.largest_graph_bytes = max(free_by_pool.values(), default=0)
        """Free bytes of the pool of CUDA graphs with the most."""
        uses = [event for pool, (event, _) in self._first_uses.items() if pool in self.of_graphs]
        self.last_graph_event = max(uses, default=0)
        """Event at which the last of these pools was first used."""

    def are_segments_of(self, pools: Container[tuple[int, int]]) -> npt.NDArray[np.bool_]:
        return np.array([pool in pools for pool in self.of_segments], np.bool_)

    def find_stack(self, pools: Container[tuple[int, int]]) -> int:
        """Return a stack of the line that used most of these pools first; 0: unknown."""
        by_line: dict[object, list[int]] = {}
        for pool, (_, stack) in self._first_uses.items():
            if pool in pools and stack:
                by_line.setdefault(self._trace.stacks.key(stack, "line"), []).append(stack)
        return max(by_line.values(), key=len)[0] if by_line else 0

    def _is_of_graph(self, pool: tuple[int, int]) -> bool:
        if pool[0] != 0:
            return True  # torch makes it for a capture without a given pool
        _, stack = self._first_uses.get(pool, (0, 0))
        return any(frame.filename.endswith(_GRAPHS_FILE) for frame in self._trace.stacks.frames(stack))

    def _find_first_uses(self, device: str, until: int) -> dict[tuple[int, int], tuple[int, int]]:
        """Return event and stack of the first use of each pool."""
        uses: dict[tuple[int, int], tuple[int, int]] = {}
        for events in self._trace.iter_events(Range(0, until), ("pool_use",), with_state=False):
            for row in events.take(self._trace.devices_of(events) == device).rows():
                uses.setdefault(self._trace.locations.row(row["location"])[2], (int(row["seq"]), int(row["stack_id"])))
        return uses


def _list_causes(
    trace: RecordedTrace, at_peak: Fragmentation, request: PeakRequest, pools: _PrivatePools
) -> Iterator[UnusableMemory]:
    segments, own_pool = at_peak.segments, {request.pool}
    is_own_pool = pools.are_segments_of(own_pool)
    if request.pool not in pools.of_graphs:
        is_here = is_own_pool & (segments["stream"] == request.stream)
        yield from _list_causes_here(trace, at_peak.part(is_here), request)
        yield _describe_elsewhere(Cause.STREAMS, segments, is_own_pool & ~is_here, segments["stream"].tolist())
    if request.pool != (0, 0):
        is_default = pools.are_segments_of({(0, 0)})
        yield _describe_elsewhere(Cause.DEFAULT_POOL, segments, is_default, pools.of_segments)
    of_mempools = {*pools.of_segments} - pools.of_graphs - own_pool - {(0, 0)}
    for cause, group in ((Cause.GRAPHS, pools.of_graphs), (Cause.POOLS, of_mempools)):
        part = _describe_elsewhere(cause, segments, pools.are_segments_of(group), pools.of_segments)
        unused = part.bytes - (pools.largest_graph_bytes if cause == Cause.GRAPHS else 0)
        stack = pools.find_stack(group)
        site = Site.of_stack(trace.stacks, stack) if stack else None
        yield replace(part, bytes=unused, site=site, stack_id=stack)


def _list_causes_here(trace: RecordedTrace, here: Fragmentation, request: PeakRequest) -> Iterator[UnusableMemory]:
    """Yield the causes in the request's own pool and stream."""
    limit = here.settings.max_split_size
    is_above = here.sizes >= limit if limit and request.requested_bytes < limit else np.zeros(len(here.sizes), np.bool_)
    above = int(here.sizes[is_above].sum())
    yield UnusableMemory(Cause.SPLIT_LIMIT, above, int(is_above.sum()), above)
    pinned = _describe_pinned(trace, here)
    is_of_step = pinned.site is not None and _are_of_step(trace, here, pinned.stack_id, request)
    yield replace(pinned, bytes=min(pinned.bytes, here.free_bytes - above), is_of_step=is_of_step)
    free_segments = here.segments.take(here.segments["live_blocks"] == 0)
    released = max(here.releasable_bytes - above, 0)
    largest = int(free_segments["largest_free_bytes"].max(initial=0))
    yield UnusableMemory(Cause.SIZES, released, len(free_segments), released, largest_bytes=largest)


def _describe_elsewhere(
    cause: Cause, segments: Table, is_part: npt.NDArray[np.bool_], owners: Sequence[object]
) -> UnusableMemory:
    return UnusableMemory(
        cause,
        int(segments["free_bytes"][is_part].sum()),
        len({owner for owner, is_selected in zip(owners, is_part.tolist(), strict=True) if is_selected}),
        int(segments["total_bytes"][is_part].sum()),
    )


def _judge_cache(evidence: InefficiencyEvidence, fragmentation: Sequence[Inefficiency]) -> Iterator[Inefficiency]:
    if evidence.at_end_of_work is None:
        return
    unused, reserved = evidence.unused_bytes, int(evidence.values("reserved_bytes")[-1])
    if not evidence.at_end_of_work.is_compacted:
        # empty_cache() returns nothing of private pools, such as those of live CUDA graphs.
        unused -= evidence.at_end_of_work.result.releasable_bytes_of_pools
    explained = max((finding.bytes for finding in fragmentation), default=0)
    if not _is_notable(unused - explained, reserved):
        return
    share = evidence.allocation_share
    last_needed = int(np.flatnonzero(evidence.values("releasable_bytes_min") < evidence.unused_bytes).max(initial=0))
    was_warmup = bool(share[last_needed] < QUARTER)
    seconds = _elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][last_needed]))
    figures = {"is_warmup": float(was_warmup)}
    cache = Inefficiency("cache", evidence.device, unused, reserved, seconds, figures=figures)
    released = _find_released_line(evidence)
    if released is not None and 2 * released.site_bytes >= unused:
        cache = replace(cache, site=released.site, stack_id=released.stack_id, site_bytes=released.site_bytes)
    yield cache


def _find_released_line(evidence: InefficiencyEvidence) -> Inefficiency | None:
    """Return the line of user code that released the most bytes from the peak to the end of the work, if any.

    To the end of the run if the peak follows the work.
    """
    peak, end = evidence.peak, evidence.stacks_after_peak
    if peak is None or end is None or peak.is_compacted or end.is_compacted:
        return None
    stack_ids = peak.result["stack_id"]
    count = int(max(stack_ids.max(initial=0), end.result["stack_id"].max(initial=0))) + 1
    released = sums(stack_ids, peak.result["live_block_bytes"], count)
    released -= sums(end.result["stack_id"], end.result["live_block_bytes"], count)
    sizes = np.maximum(released[stack_ids], 0)
    if not sizes.any():
        return None
    return _attribute_to_line(evidence, "cache", stack_ids, sizes, peak.until - 1, int(sizes.sum()))


def _judge_rounding(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.peak is None:
        return
    stacks = evidence.peak.result
    wasted = np.maximum(stacks["live_block_bytes"] - stacks["live_bytes"], 0)
    allocated = int(stacks["live_block_bytes"].sum())
    if _is_notable(int(wasted.sum()), allocated):
        blocks = np.maximum(stacks["live_blocks"], 1)
        figures = {
            "block_bytes": float(np.average(stacks["live_block_bytes"] / blocks, weights=wasted)),
            "wasted_bytes": float(np.average(wasted / blocks, weights=wasted)),
        }
        stack_ids, seq = stacks["stack_id"], evidence.peak.until - 1
        yield _attribute_to_line(evidence, "rounding", stack_ids, wasted, seq, allocated, figures)


def _pending_blocks(trace: RecordedTrace, until: int, device: str) -> Table:
    blocks = trace.replay.blocks(until, device)
    return blocks.take(blocks["state"] == PENDING_FREE).select("stack_id", "block_bytes")


def _judge_pending(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    if evidence.pending is None:
        return
    seq, reserved = evidence.pending.until - 1, int(evidence.values("reserved_bytes_max").max())
    figures = {"byte_seconds": float(evidence.pending_bytes.mean()) * _elapsed_s(evidence.trace, evidence.end_ns)}
    if evidence.pending.is_compacted:
        seconds = _elapsed_s(evidence.trace, evidence.trace.time_ns(seq))
        # The second largest value: one interval may end between the two events of an ordinary free.
        second_largest = int(np.sort(evidence.pending_bytes)[-2:].min())
        if _is_notable(second_largest, reserved):
            yield Inefficiency("pending", evidence.device, second_largest, reserved, seconds, figures=figures)
        return
    blocks = evidence.pending.result
    # Hardly any block is pending if the interval ended between the two events of an ordinary free: in older traces, and
    # because borders are exact only to some hundred nanoseconds.
    if not _is_notable(int(blocks["block_bytes"].sum()), reserved):
        return
    yield _attribute_to_line(evidence, "pending", blocks["stack_id"], blocks["block_bytes"], seq, reserved, figures)


def _judge_churn(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    is_second_half = evidence.allocation_share >= HALF
    if not is_second_half.any():
        return
    names = ("reserved_bytes", "reserved_bytes_min", "reserved_bytes_max")
    level, lowest, highest = (evidence.values(name)[is_second_half] for name in names)
    previous_level = np.concatenate([level[:1], level[:-1]])
    taken_bytes, max_reserved = int((highest - np.minimum(lowest, previous_level)).sum()), int(highest.max())
    if max_reserved >= MIN_BYTES and taken_bytes >= MIN_CHURN * max_reserved:
        begin = _elapsed_s(evidence.trace, int(evidence.timeline["time_ns"][is_second_half][0]))
        calls = float(evidence.trace.kind_counts.get("empty_cache", 0))
        figures = {"times": taken_bytes / max_reserved, "calls": calls}
        yield Inefficiency("churn", evidence.device, taken_bytes, max_reserved, begin, figures=figures)


def _judge_outside(evidence: InefficiencyEvidence) -> Iterator[Inefficiency]:
    total = evidence.trace.device_bytes(evidence.device)
    outside: Any = evidence.run["outside_bytes"]
    if np.ma.getmaskarray(outside).all() or total is None:
        return
    interval = int(np.ma.filled(outside, np.iinfo(np.int64).min).argmax())
    max_outside = int(outside[interval])
    if max_outside >= MIN_OUTSIDE_BYTES and _is_notable(max_outside, total):
        seconds = _elapsed_s(evidence.trace, int(evidence.run["time_ns"][interval]))
        yield Inefficiency("outside", evidence.device, max_outside, total, seconds)


def _attribute_to_line(
    evidence: InefficiencyEvidence,
    kind: str,
    stack_ids: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    seq: int,
    total: int,
    figures: dict[str, float] | None = None,
) -> Inefficiency:
    """Return an inefficiency with `sizes` at stake, by stack, and the line with the largest part."""
    trace = evidence.trace
    numbers = SiteNumbers(trace.stacks.line_numbers).of(stack_ids)
    by_line = sums(numbers, sizes, int(numbers.max()) + 1)
    largest = int(by_line.argmax())
    stack = int(stack_ids[numbers == largest][0])
    return Inefficiency(
        *(kind, evidence.device, int(sizes.sum()), total, _elapsed_s(trace, trace.time_ns(seq))),
        site=Site.of_stack(trace.stacks, stack),
        stack_id=stack,
        site_bytes=int(by_line[largest]),
        figures=figures or {},
    )


def _weighted_median(values: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> int:
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    return int(values[order][np.searchsorted(below, below[-1] / 2)])


def _elapsed_s(trace: RecordedTrace, time_ns: int) -> float:
    return max(time_ns - trace.begin_ns, 0) / 1e9
