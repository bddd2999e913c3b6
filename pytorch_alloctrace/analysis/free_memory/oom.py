"""Failed allocations: what was requested, what was free, and why that was not enough.

Before torch gives up, it waits for other streams, returns every wholly free segment (or mapping unit, if expandable)
to the driver, and asks again. So what is still cached at the failure is stranded next to live blocks or belongs to
a live private pool, and empty_cache() would not have helped. While a private pool is in use, as in a capture, torch
returns nothing from other pools.

The verdict is the first rule that applies. *Needed* is what the driver had to give (`driver_bytes`), below a limit what
torch counts (`segment_bytes`). *Room* is what the driver could still give (`available_bytes`).

1. one request too large: needed exceeds the device, less what this process uses permanently outside torch (context).
2. cache in another pool or stream: one free piece there, or all of them together with the room, would have been enough;
   they are at least a tenth of the reserved bytes.
3. fragmented: the free pieces of the request's own pool and stream, together with the room, would have been enough, but
   no single piece was; they are at least a tenth of the reserved bytes. If both 2 and 3 apply, or only the pieces of
   both together would have been enough, the rule with more free bytes wins.
4. limit of the process: the driver had all that was needed, so a limit refused the request:
   `set_per_process_memory_fraction`, or the setting `per_process_memory_fraction`. Its bytes are inferred.
5. other process / outside PyTorch: other processes' memory, and this process's outside torch beyond a usual context,
   would have been enough together with the room; it is at least a tenth of the device.
6. full: none of these.

Less than a tenth would have served only one more request.

A verdict is why the allocator could not serve the request. What the program did to fill the memory is the cause
(`program_memory`). A leak or forwards that hold a quarter of what the process may use lead, whatever the verdict is;
beside fragmentation, `_leads_beside_fragments` decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..._replay import SMALL_REQUEST, AllocatorSettings
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, SiteBytes, sites_of_blocks, top_sites
from ...reading.table import ALLOCATED, INACTIVE, Table
from ..leaks.leak import Leak
from ..usage.package_lines import LibraryCall, find_library_call, live_by_stack
from ..walk import Visit, Walk
from .allocator import MemoryLimit, SettingsHistory
from .failed_allocations import ENDED, FailedAllocation, find_failed_allocations
from .fragmentation import Fragmentation, blocks_with_steps, fragmentation_of
from .program_memory import ACTIVATIONS, LARGE_REQUEST, LARGE_SHARE, NAMED_CAUSES, ProgramMemory
from .program_memory_reader import MIN_GROWTH, read_program_memory

TOO_LARGE = "one request too large"
ELSEWHERE = "cache in another pool or stream"
FRAGMENTED = "fragmented"
LIMIT = "limit of the process"
OUTSIDE = "other process / outside PyTorch"
FULL = "full"
VERDICTS = (TOO_LARGE, ELSEWHERE, FRAGMENTED, LIMIT, OUTSIDE, FULL)

MIN_CAUSE_SHARE = 0.1
"""Minimum share of the reserved bytes (or of the device) for something to be the cause."""
USUAL_CONTEXT_BYTES = 1 << 30
"""Bytes that a healthy process uses on a device outside torch: CUDA context, cuBLAS, NCCL."""
MAX_SITES = 20
_MAX_BLOCKS, ALWAYS_FOUND = 2_000_000, 20
"""Numbers of blocks and of failures: `find_ooms` explains failures, the last first, until both are reached."""


@dataclass(frozen=True, eq=False)
class OutOfMemory:
    """One failed allocation, its verdict and its cause.

    Sizes are bytes of blocks, after rounding and splitting, except in `top_sites` and `pool_sites`.
    """

    request: FailedAllocation
    """Event of the failure: seq, time_ns, device, requested bytes, stream, pool, stack_id, outcome, ..."""
    step: int | None
    """Step of the request; None in a trace without steps."""
    site: Site
    """Line that made the request; in backward, the line of forward that caused it, if known."""
    segment_bytes: int
    """Bytes of the segment that torch needed, as in its error message and as counted against a limit.

    If the allocator has no segments, the requested bytes.
    """
    segment_type: str
    """Pool of torch that serves this size: small or large."""
    settings: AllocatorSettings
    """Settings of the allocator at the request."""
    limit: MemoryLimit
    """Origin of the process's memory limit, which exists if `limit_bytes` is not None."""
    reserved_bytes: int
    """Bytes of all segments; of live blocks if the allocator reports none (cudaMallocAsync, pluggable ones)."""
    allocated_bytes: int
    """Bytes of live blocks."""
    device_bytes: int | None
    """Total bytes of the device; None if unknown."""
    other_processes_bytes: int | None
    """Bytes used by other processes, by the driver's sample near the request; None if unknown."""
    peak_reserved_bytes: int
    """Maximum reserved bytes of the whole run."""
    here: Fragmentation = field(repr=False)
    """Segments of the request's own pool and stream."""
    elsewhere: Fragmentation = field(repr=False)
    """Segments of other pools and streams."""
    top_sites: tuple[SiteBytes, ...] = field(repr=False)
    """Lines with the most live bytes. Requested bytes."""
    library_call: LibraryCall | None = field(repr=False)
    """Line of a package that the first of `top_sites` calls; None if it calls none."""
    pool_sites: tuple[SiteBytes, ...] = field(repr=False)
    """Lines with blocks in the pool that the request could not use and that has the most free bytes.

    Requested bytes.
    """
    program: ProgramMemory = field(repr=False)
    """Live memory by what the program uses it for."""

    @property
    def seq(self) -> int:
        """Event number of the failure."""
        return self.request.seq

    @property
    def device(self) -> str:
        """Device in torch's spelling."""
        return self.request.device

    @property
    def requested_bytes(self) -> int:
        """Requested bytes as rounded by torch: to 512 B, or by roundup_power2_divisions."""
        return self.request.requested_bytes

    @property
    def device_free_bytes(self) -> int:
        """Free bytes of the device at the failure, as the driver reported them."""
        return self.request.device_free_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest free block in the request's pool, stream and segment type."""
        segments = self.here.segments
        fitting = segments["segment_type"] == self.segment_type
        return int(segments["largest_free_bytes"][fitting].max(initial=0))

    @property
    def outside_bytes(self) -> int | None:
        """Bytes used on the device outside torch; None if the size of the device is unknown."""
        return (
            None
            if self.device_bytes is None
            else max(self.device_bytes - self.device_free_bytes - self.reserved_bytes, 0)
        )

    @property
    def mapping_unit_bytes(self) -> int | None:
        """Bytes of the units in which an expandable segment is mapped; None if segments are not expandable."""
        is_expandable = self.settings.expandable_segments
        return self.settings.mapping_unit(is_large=self.segment_type == "large") if is_expandable else None

    @property
    def driver_bytes(self) -> int:
        """Bytes that the driver had to give: of an expandable segment, complete mapping units."""
        unit = self.mapping_unit_bytes
        return self.segment_bytes if unit is None else -(-self.segment_bytes // unit) * unit

    @property
    def is_limited(self) -> bool:
        """True if the driver had all that was needed, so that a limit of the process refused the request."""
        return self.device_free_bytes >= self.driver_bytes

    @property
    def limit_bytes(self) -> tuple[int, int] | None:
        """Range (minimum, maximum) of the limit in bytes; None if the driver did not have enough memory."""
        if not self.is_limited:
            return None
        maximum = self.reserved_bytes + self.segment_bytes - 1
        # The limit allows the earlier peak, unless it was set after the peak.
        allows_peak = self.reserved_bytes <= self.peak_reserved_bytes <= maximum
        return self.peak_reserved_bytes if allows_peak else self.reserved_bytes, maximum

    @property
    def available_bytes(self) -> int:
        """Bytes that the driver could still give; under a limit, the bytes that it certainly could."""
        return self.limit_bytes[0] - self.reserved_bytes if self.limit_bytes is not None else self.device_free_bytes

    @property
    def _needed_bytes(self) -> int:
        return self.segment_bytes if self.is_limited else self.driver_bytes

    @property
    def is_free_here_enough(self) -> bool:
        """True if the free pieces of the request's own pool and stream, with the room, had the bytes needed."""
        return self.available_bytes + self.here.free_bytes >= self._needed_bytes

    @property
    def max_possible_bytes(self) -> int | None:
        """Bytes that torch could have if nothing but this process's context used the device.

        None if the size of the device is unknown.
        """
        if self.device_bytes is None or self.outside_bytes is None:
            return None
        return self.device_bytes - (
            max(self.outside_bytes - self.other_processes_bytes, 0) if self.other_processes_bytes is not None else 0
        )

    @property
    def unusual_outside_bytes(self) -> int:
        """Bytes of other processes, and of this process outside torch beyond a usual context."""
        other_processes = self.other_processes_bytes or 0
        return other_processes + max((self.outside_bytes or 0) - other_processes - USUAL_CONTEXT_BYTES, 0)

    @property
    def verdict(self) -> str:
        """Why the allocator could not serve the request, such as "fragmented" or "full": see docs/out-of-memory.md."""
        if self.max_possible_bytes is not None and self._needed_bytes > self.max_possible_bytes:
            return TOO_LARGE
        cached_verdict = self._cached_verdict()
        if cached_verdict is not None:
            return cached_verdict
        if self.is_limited:
            return LIMIT
        outside = self.unusual_outside_bytes
        if (
            self.device_bytes is not None
            and outside >= MIN_CAUSE_SHARE * self.device_bytes
            and self.available_bytes + outside >= self._needed_bytes
        ):
            return OUTSIDE
        return FULL

    @property
    def usable_bytes(self) -> int:
        """Bytes that this process may use: its limit, else the device, else what torch reserved and could reserve."""
        if self.limit_bytes is not None:
            return self.limit_bytes[1]
        return self.reserved_bytes + self.device_free_bytes if self.device_bytes is None else self.device_bytes

    @property
    def cause(self) -> str | None:
        """Cause in the program, such as "optimizer state"; None if the verdict is the cause."""
        leading_cause = self.program.leading_cause(self.usable_bytes)
        if leading_cause is not None:
            return leading_cause
        if self.verdict == TOO_LARGE:
            return LARGE_REQUEST
        cause = self.program.cause(self.usable_bytes)
        is_beside = self.verdict == FRAGMENTED and self._leads_beside_fragments(cause)
        return cause if self.verdict == FULL or is_beside else None

    def _leads_beside_fragments(self, cause: str) -> bool:
        """Return whether a cause comes before fragmentation, whose cure would serve this request, but few others.

        A large request leads if it is twice as large as all before of its line, and other causes that name what holds
        the memory if an eighth of the usable bytes or less is free in pieces.
        """
        if cause == LARGE_REQUEST:
            return self.requested_bytes >= MIN_GROWTH * self.program.largest_before_bytes > 0
        return cause in NAMED_CAUSES and 2 * self.here.free_bytes <= LARGE_SHARE * self.usable_bytes

    def needs_finding_on_fragmentation(self, fragmented_bytes: int) -> bool:
        """Return whether fragmentation of the device deserves a finding besides the one on this failure.

        The finding on a failure with the verdict FRAGMENTED describes it. Beside another verdict, less than
        `MIN_CAUSE_SHARE` of what the process may use is negligible, and so is what was no longer free when the
        program ended.
        """
        if self.request.outcome == ENDED:
            fragmented_bytes = min(fragmented_bytes, self.here.free_bytes + self.elsewhere.free_bytes)
        return self.verdict != FRAGMENTED and fragmented_bytes >= MIN_CAUSE_SHARE * self.usable_bytes

    def find_leading_leak(self, leaks: Sequence[Leak]) -> Leak | None:
        """Return the largest leak if it holds a quarter of the usable bytes, and the program's cause is no other.

        Forwards without backward, copies and the state of a first optimizer step may look like leaks. Leaks judged
        after the failure do not count: they may have grown since. Pieces too small that are half as much lead instead.
        """
        program, forwards = self.program, self.program.forwards
        if program.leading_cause(self.usable_bytes) is not None:
            return None
        explained = {site.site for site in (*program.checkpoints, *program.copies)}
        if program.in_optimizer and program.is_first_step:
            explained.add(self.site)
        # Activations of a forward in progress are not freed before backward.
        in_forward = {site.site for site in program.sites_by_use[ACTIVATIONS]}
        forward_bytes = forwards.site.bytes if forwards is not None else 0
        candidates = [
            leak
            for leak in leaks
            if not leak.minor
            and leak.sites[0].site not in explained
            and (leak.allocated_bytes > forward_bytes or leak.sites[0].site not in in_forward)
            and (leak.judged_at <= self.seq or self.request.outcome == ENDED)
        ]
        largest = max(candidates, key=self.measure_leak, default=None)
        held_bytes = 0 if largest is None else self.measure_leak(largest)
        if held_bytes < LARGE_SHARE * self.usable_bytes:
            return None
        free_bytes = self.here.free_bytes if self.verdict == FRAGMENTED else 0
        return None if LARGE_SHARE * self.usable_bytes <= 2 * free_bytes >= held_bytes else largest

    def measure_leak(self, leak: Leak) -> int:
        """Return what a leak holds; a large one with all other blocks of its lines, such as those of a former epoch."""
        if leak.allocated_bytes < MIN_CAUSE_SHARE * self.usable_bytes:
            return leak.allocated_bytes
        lines = {site.site for site in leak.sites}
        return max(leak.allocated_bytes, sum(site.bytes for site in self.top_sites if site.site in lines))

    def _cached_verdict(self) -> str | None:
        """Apply rules 2 and 3."""
        here, elsewhere = self.here.free_bytes, self.elsewhere.free_bytes
        elsewhere_is_enough = (
            self.elsewhere.largest_free_bytes >= self.requested_bytes
            or self.available_bytes + elsewhere >= self._needed_bytes
        )
        both_are_enough = self.available_bytes + here + elsewhere >= self._needed_bytes
        if self.is_free_here_enough == elsewhere_is_enough:
            if not (elsewhere_is_enough or both_are_enough):
                return None
            is_elsewhere = elsewhere > here
        else:
            is_elsewhere = elsewhere_is_enough
        if (elsewhere if is_elsewhere else here) < max(MIN_CAUSE_SHARE * self.reserved_bytes, 1):
            return None
        return ELSEWHERE if is_elsewhere else FRAGMENTED


def find_ooms(
    trace: RecordedTrace, *, device: str | None = None, within: Range | None = None, last: int | None = None
) -> list[OutOfMemory]:
    """Implement `Trace.ooms`; `within` selects a range of events."""
    device = trace.named_device(device)
    requests = find_failed_allocations(trace, device=device, within=within, last=last)
    if not requests:
        return []
    history = SettingsHistory(trace)
    ooms: list[OutOfMemory] = []
    block_count = 0
    for request in reversed(requests):
        oom, blocks = _explain_failure(trace, request, history)
        ooms.append(oom)
        block_count += blocks
        if block_count > _MAX_BLOCKS and len(ooms) >= ALWAYS_FOUND:
            break
    return ooms[::-1]


def visit_last_oom(walk: Walk, trace: RecordedTrace, device: str) -> Visit[OutOfMemory] | None:
    """Plan a visit that explains the last failed allocation of a device; None if there is none."""
    requests = find_failed_allocations(trace, device=device, last=1)
    if not requests:
        return None
    [request], history = requests, SettingsHistory(trace)
    return walk.visit(request.seq, lambda: _explain_failure(trace, request, history)[0])


def _explain_failure(
    trace: RecordedTrace, request: FailedAllocation, history: SettingsHistory
) -> tuple[OutOfMemory, int]:
    """Return the explained failure and the number of blocks at that event."""
    device = request.device
    settings = history.before(device, request.seq)
    segments, blocks = trace.replay.segments(request.seq, device), blocks_with_steps(trace, request.seq, device)
    live = blocks.take(blocks["state"] != INACTIVE)
    is_here = (segments["stream"] == request.stream) & np.array(
        [pool == request.pool for pool in segments["segment_pool_id"].tolist()], np.bool_
    )
    parts = []
    for is_in_part in (is_here, ~is_here):
        part_segments = segments.take(is_in_part)
        is_part_block = np.isin(blocks["segment"], part_segments["address"]) & (blocks["segment"] != 0)
        parts.append(
            fragmentation_of(trace, request.seq - 1, device, part_segments, blocks.take(is_part_block), settings)
        )
    has_segments = history.has(device) or len(segments) > 0
    device_bytes, other_processes_bytes = _read_device_memory(trace, request)
    allocated = int(blocks["block_bytes"][blocks["state"] == ALLOCATED].sum())
    peak = trace.replay.peak("reserved", device)
    sites = top_sites(trace.stacks, sites_of_blocks(trace.stacks, live), MAX_SITES)
    oom = OutOfMemory(
        request=request,
        step=trace.positions.step_at(request.seq),
        site=Site.of_stack(trace.stacks, request.stack_id),
        segment_bytes=settings.segment_size(request.requested_bytes) if has_segments else request.requested_bytes,
        segment_type="small" if request.requested_bytes <= SMALL_REQUEST else "large",
        settings=settings,
        limit=history.limit_before(device, request.seq),
        reserved_bytes=int(segments["total_bytes"].sum()) if len(segments) else allocated,
        allocated_bytes=allocated,
        device_bytes=device_bytes,
        other_processes_bytes=other_processes_bytes,
        peak_reserved_bytes=peak.bytes if peak is not None else 0,
        here=parts[0],
        elsewhere=parts[1],
        top_sites=sites,
        library_call=_find_library_call(trace, sites[0].stack_id, live) if sites else None,
        pool_sites=_find_pool_sites(trace, parts[1], live),
        program=read_program_memory(trace, request, live),
    )
    return oom, len(blocks)


def _find_library_call(trace: RecordedTrace, stack_id: int, live: Table) -> LibraryCall | None:
    lines = trace.stacks.line_numbers
    return find_library_call(trace.stacks, live_by_stack(live.take(lines[live["stack_id"]] == lines[stack_id])))


def _find_pool_sites(trace: RecordedTrace, elsewhere: Fragmentation, live: Table) -> tuple[SiteBytes, ...]:
    pools, segments = elsewhere.pools, elsewhere.segments
    if not len(pools):
        return ()
    fullest = int(np.argmax(pools["free_bytes"]))
    pool, stream = pools["segment_pool_id"][fullest], pools["stream"][fullest]
    is_in_pool = np.array([segment_pool == pool for segment_pool in segments["segment_pool_id"].tolist()], np.bool_)
    addresses = segments["address"][is_in_pool & (segments["stream"] == stream)]
    sites = sites_of_blocks(trace.stacks, live.take(np.isin(live["segment"], addresses)))
    return top_sites(trace.stacks, sites, MAX_SITES)


def _read_device_memory(trace: RecordedTrace, request: FailedAllocation) -> tuple[int | None, int | None]:
    """Return the device's bytes, and those of other processes in the last sample before the request, else the first."""
    samples = trace.driver_samples(request.device)
    other_processes = samples["other_processes_bytes"]
    rows = np.flatnonzero(~np.ma.getmaskarray(other_processes))
    earlier_rows = rows[samples["seq"][rows] < request.seq]
    nearest_row = earlier_rows[-1:] if len(earlier_rows) else rows[:1]
    other_bytes = int(other_processes[nearest_row[0]]) if len(nearest_row) else None
    return trace.device_bytes(request.device), other_bytes
