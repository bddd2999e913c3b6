"""Failed allocations: what was requested, what was free, and why that was not enough.

The state is that of the refusal. Before torch gives up, it waits for other streams, returns every segment that is
wholly free to the driver (of an expandable one every free mapping unit) and asks the driver again. So what is still
cached is stranded (free pieces next to live blocks) or belongs to a private pool that is still held, and empty_cache()
would not have helped. (Only while a private pool is in use, as in a capture, torch returns nothing from other pools.)

The rules of the verdict, in this order. *Needed* is what the driver had to give (`segment_bytes`), *room* what it still
could: the free bytes of the device or, under a limit, what was left below the lowest value that the limit can have.

1. one request too large: needed exceeds the whole device, less what other code of this process (its CUDA context) keeps
   for good.
2. cache in another pool or stream: free pieces that torch holds for other streams or pools would have been enough, one
   of them or all together with the room, and are at least a tenth of what is reserved.
3. fragmented: the free pieces of the request's own pool and stream, together with the room, would have been enough, but
   no single one was; and they are at least a tenth of what is reserved. If both 2 and 3 hold, or only both together
   would have been enough, the one with more free bytes counts.
4. limit of the process: the driver had enough, so that a limit refused: `set_per_process_memory_fraction`, or the
   setting `per_process_memory_fraction`. No event reports it.
5. other process / outside PyTorch: what other processes use, and this one outside torch beyond the usual size of a CUDA
   context, would have been enough together with the room, and is at least a tenth of the device.
6. full: none of these. The memory is in use; the top sites show by what.

Less than a tenth would have served only one more request: what is nearly full fails at the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..._replay import SMALL_REQUEST, AllocatorSettings
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteBytes, sites_of_blocks, top_sites
from ...reading.table import ALLOCATED, INACTIVE, Table
from ..walk import Visit, Walk
from .allocator import SettingsHistory
from .failed_allocations import FailedAllocation, find_failed_allocations
from .fragmentation import Fragmentation, blocks_with_steps, fragmentation_of

TOO_LARGE = "one request too large"
ELSEWHERE = "cache in another pool or stream"
FRAGMENTED = "fragmented"
LIMIT = "limit of the process"
OUTSIDE = "other process / outside PyTorch"
FULL = "full"
VERDICTS = (TOO_LARGE, ELSEWHERE, FRAGMENTED, LIMIT, OUTSIDE, FULL)

NOTABLE = 0.1
"""Something is the cause, and not only present, if it is at least this share of what is reserved (of the device)."""
USUAL_CONTEXT = 1 << 30
"""Bytes that a healthy process uses on a device outside torch: CUDA context, cuBLAS, NCCL."""
TOP_SITES = 20
_MOST_BLOCKS, ALWAYS_FOUND = 2_000_000, 20
"""Requests are looked into, from the last one on, until there were so many blocks around them, and at least so many."""
SETUP_STEPS = 2
"""The optimizer makes its state in the first step; the first gradients may be made again in the second."""


@dataclass(frozen=True, eq=False)
class OutOfMemory:
    """A failed allocation and its cause. Bytes are those of blocks, after rounding and splitting, but `top_sites`."""

    request: FailedAllocation
    """The event: seq, time_ns, device, requested, stream, pool, stack_id, outcome, ..."""
    step: int | None
    """The step that it belongs to; None in a trace without steps."""
    site: Site
    """The line that made the request (in backward: the line of forward that caused it, if known)."""
    segment_bytes: int
    """What torch needed from the driver: the size in its error message. If the allocator has no segments, what was
    requested."""
    segment_type: str
    """"small" or "large": which of its two pools serves such a size."""
    settings: AllocatorSettings
    """The allocator's settings at the request."""
    reserved_bytes: int
    """All segments; if the allocator reports none (cudaMallocAsync, pluggable ones), the live blocks."""
    allocated_bytes: int
    """Live blocks."""
    device_bytes: int | None
    """The size of the device; None if unknown."""
    other_processes_bytes: int | None
    """Used by other processes, as the driver reported around that time; None if unknown."""
    peak_reserved_bytes: int
    """The highest of the whole run."""
    here: Fragmentation = field(repr=False)
    """The segments of the request's own pool and stream."""
    elsewhere: Fragmentation = field(repr=False)
    """Those of other pools and streams."""
    top_sites: tuple[SiteBytes, ...] = field(repr=False)
    """The lines that held the most. Requested bytes."""
    steps_of_top_site: int
    """In how many different steps the blocks of the first line were born; 0 without steps."""
    setup_bytes: int | None
    """Live bytes that were made before the second step had ended: weights, gradients, the optimizer's state. None
    without three steps."""
    pool_sites: tuple[SiteBytes, ...] = field(repr=False)
    """The lines that hold the pool or stream which, of those that the request could not use, has the most free bytes.
    Requested bytes."""

    @property
    def seq(self) -> int:
        """Number of the event."""
        return self.request.seq

    @property
    def device(self) -> str:
        """Torch's spelling."""
        return self.request.device

    @property
    def requested_bytes(self) -> int:
        """As torch rounded it up (to 512 B, or by roundup_power2_divisions)."""
        return self.request.requested_bytes

    @property
    def device_free_bytes(self) -> int:
        """Free on the device at that time, as the driver reported it."""
        return self.request.device_free_bytes

    @property
    def largest_free_bytes(self) -> int:
        """The largest free block that could have served it: of its pool, its stream and its kind of segments."""
        segments = self.here.segments
        fitting = segments["segment_type"] == self.segment_type
        return int(segments["largest_free_bytes"][fitting].max(initial=0))

    @property
    def outside_bytes(self) -> int | None:
        """Used on the device and not reserved by torch; None if the size of the device is unknown."""
        return (
            None
            if self.device_bytes is None
            else max(self.device_bytes - self.device_free_bytes - self.reserved_bytes, 0)
        )

    @property
    def is_limited(self) -> bool:
        """Whether the driver had enough, so that something else refused."""
        return self.device_free_bytes >= self.segment_bytes

    @property
    def limit_bytes(self) -> tuple[int, int] | None:
        """The least and the most that the limit can be; None if the driver did not have enough."""
        if not self.is_limited:
            return None
        most = self.reserved_bytes + self.segment_bytes - 1
        # The limit allows what the run once had, unless it was set later.
        is_kept = self.reserved_bytes <= self.peak_reserved_bytes <= most
        return self.peak_reserved_bytes if is_kept else self.reserved_bytes, most

    @property
    def available_bytes(self) -> int:
        """What the driver could still give; under a limit, what it could give for certain."""
        return self.limit_bytes[0] - self.reserved_bytes if self.limit_bytes is not None else self.device_free_bytes

    @property
    def max_possible_bytes(self) -> int | None:
        """What the device could ever give to torch if nothing else but this process's context used it."""
        if self.device_bytes is None or self.outside_bytes is None:
            return None
        return self.device_bytes - (
            max(self.outside_bytes - self.other_processes_bytes, 0) if self.other_processes_bytes is not None else 0
        )

    @property
    def unusual_outside_bytes(self) -> int:
        """What other processes use, and this one outside torch beyond a usual context."""
        others = self.other_processes_bytes or 0
        return others + max((self.outside_bytes or 0) - others - USUAL_CONTEXT, 0)

    @property
    def verdict(self) -> str:
        """Why the request failed, such as "fragmented" or "full": one of those that docs/out-of-memory.md explains."""
        if self.max_possible_bytes is not None and self.segment_bytes > self.max_possible_bytes:
            return TOO_LARGE
        cached = self._cached_verdict()
        if cached is not None:
            return cached
        if self.is_limited:
            return LIMIT
        outside = self.unusual_outside_bytes
        if (
            self.device_bytes is not None
            and outside >= NOTABLE * self.device_bytes
            and self.available_bytes + outside >= self.segment_bytes
        ):
            return OUTSIDE
        return FULL

    def _cached_verdict(self) -> str | None:
        """Rules 2 and 3."""
        here, elsewhere = self.here.free_bytes, self.elsewhere.free_bytes
        elsewhere_would_do = (
            self.elsewhere.largest_free_bytes >= self.requested_bytes
            or self.available_bytes + elsewhere >= self.segment_bytes
        )
        here_would_do = self.available_bytes + here >= self.segment_bytes
        together = self.available_bytes + here + elsewhere >= self.segment_bytes
        if here_would_do == elsewhere_would_do:
            if not (here_would_do or together):
                return None
            is_elsewhere = elsewhere > here
        else:
            is_elsewhere = elsewhere_would_do
        if (elsewhere if is_elsewhere else here) < max(NOTABLE * self.reserved_bytes, 1):
            return None
        return ELSEWHERE if is_elsewhere else FRAGMENTED


def find_ooms(
    trace: RecordedTrace, *, device: str | None = None, within: Range | None = None, last: int | None = None
) -> list[OutOfMemory]:
    """See `Trace.ooms`. within: only requests in these events."""
    device = trace.named_device(device)
    requests = find_failed_allocations(trace, device=device, within=within, last=last)
    if not requests:
        return []
    history = SettingsHistory(trace)
    found: list[OutOfMemory] = []
    looked_at = 0
    for request in reversed(requests):
        one, blocks = _out_of_memory(trace, request, history)
        found.append(one)
        looked_at += blocks
        if looked_at > _MOST_BLOCKS and len(found) >= ALWAYS_FOUND:
            break
    return found[::-1]


def visit_last_oom(walk: Walk, trace: RecordedTrace, device: str) -> Visit[OutOfMemory] | None:
    """Plan to look into the last failed allocation of a device; None if there is none."""
    requests = find_failed_allocations(trace, device=device, last=1)
    if not requests:
        return None
    [request], history = requests, SettingsHistory(trace)
    return walk.visit(request.seq, lambda: _out_of_memory(trace, request, history)[0])


def _out_of_memory(
    trace: RecordedTrace, request: FailedAllocation, history: SettingsHistory
) -> tuple[OutOfMemory, int]:
    """And how many blocks there were."""
    device = request.device
    settings = history.before(device, request.seq)
    segments, blocks = trace.replay.segments(request.seq, device), blocks_with_steps(trace, request.seq, device)
    live = blocks.take(blocks["state"] != INACTIVE)
    is_here = (segments["stream"] == request.stream) & np.array(
        [pool == request.pool for pool in segments["segment_pool_id"].tolist()], np.bool_
    )
    parts = []
    for wanted in (is_here, ~is_here):
        chosen = segments.take(wanted)
        is_inside = np.isin(blocks["segment"], chosen["address"]) & (blocks["segment"] != 0)
        parts.append(fragmentation_of(trace, request.seq - 1, device, chosen, blocks.take(is_inside), settings))
    makes_segments = history.has(device) or len(segments) > 0
    total, by_others = _device_memory(trace, request)
    allocated = int(blocks["block_bytes"][blocks["state"] == ALLOCATED].sum())
    sites = top_sites(trace.stacks, sites_of_blocks(trace.stacks, live), TOP_SITES)
    peak = trace.replay.peak("reserved", device)
    found = OutOfMemory(
        request=request,
        step=trace.positions.step_at(request.seq),
        site=Site.of_stack(trace.stacks, request.stack_id),
        segment_bytes=settings.segment_size(request.requested_bytes) if makes_segments else request.requested_bytes,
        segment_type="small" if request.requested_bytes <= SMALL_REQUEST else "large",
        settings=settings,
        reserved_bytes=int(segments["total_bytes"].sum()) if len(segments) else allocated,
        allocated_bytes=allocated,
        device_bytes=total,
        other_processes_bytes=by_others,
        peak_reserved_bytes=peak.bytes if peak is not None else 0,
        here=parts[0],
        elsewhere=parts[1],
        top_sites=sites,
        steps_of_top_site=_steps_of(trace, live, sites),
        setup_bytes=_set_up(trace, request, blocks),
        pool_sites=_pool_sites(trace, parts[1], live),
    )
    return found, len(blocks)


def _set_up(trace: RecordedTrace, request: FailedAllocation, blocks: Table) -> int | None:
    ends = trace.positions.step_ends
    ends = ends[ends < request.seq]
    if len(ends) < SETUP_STEPS + 1:
        return None
    # What has no birth was there before the recording.
    is_old = blocks["older"] | (blocks["alloc_seq"] <= ends[SETUP_STEPS - 1])
    return int(blocks["block_bytes"][is_old & (blocks["state"] == ALLOCATED)].sum())


def _pool_sites(trace: RecordedTrace, elsewhere: Fragmentation, live: Table) -> tuple[SiteBytes, ...]:
    pools, segments = elsewhere.pools, elsewhere.segments
    if not len(pools):
        return ()
    fullest = int(np.argmax(pools["free_bytes"]))
    pool, stream = pools["segment_pool_id"][fullest], pools["stream"][fullest]
    of_pool = np.array([one == pool for one in segments["segment_pool_id"].tolist()], np.bool_)
    inside = segments["address"][of_pool & (segments["stream"] == stream)]
    sites = sites_of_blocks(trace.stacks, live.take(np.isin(live["segment"], inside)))
    return top_sites(trace.stacks, sites, TOP_SITES)


def _steps_of(trace: RecordedTrace, live: Table, sites: tuple[SiteBytes, ...]) -> int:
    if not sites:
        return 0
    lines = trace.stacks.group("line")
    of_site = lines[live["stack_id"]] == lines[sites[0].stack_id]
    steps = live["step"][of_site]
    return len(np.unique(np.ma.compressed(steps)))


def _device_memory(trace: RecordedTrace, request: FailedAllocation) -> tuple[int | None, int | None]:
    """Bytes of the device, and of other processes on it: by the last sample before the request that reports them, or,
    as a program may fail before the first, the next one."""
    samples = trace.driver_samples(request.device)
    totals = np.ma.compressed(samples["total_bytes"])
    total = trace.device_bytes.get(request.device, int(totals.max()) if len(totals) else None)
    others = samples["other_processes_bytes"]
    rows = np.flatnonzero(~np.ma.getmaskarray(others))
    before = rows[samples["seq"][rows] < request.seq]
    nearest = before[-1:] if len(before) else rows[:1]
    return total, int(others[nearest[0]]) if len(nearest) else None
