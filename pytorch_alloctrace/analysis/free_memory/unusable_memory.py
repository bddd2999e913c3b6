"""Free memory that a request could not use, by cause."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from ...reading.table import Table
from .fragmentation import Fragmentation
from .inefficiency import Cause, PeakRequest, UnusableMemory

_MAX_PINNING_LINES = 5
_MIN_OLDER_SHARE = 0.25
"""Minimum of what an older line strands, as a share of the first line, for it to be named instead."""
_GRAPHS_FILE = "torch/cuda/graphs.py"


class PrivatePools:
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


def list_causes(
    trace: RecordedTrace, at_peak: Fragmentation, request: PeakRequest, pools: PrivatePools
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
    pinned = describe_pinned(trace, here)
    is_of_step = pinned.site is not None and _are_of_step(trace, here, pinned.stack_id, request)
    yield replace(pinned, bytes=min(pinned.bytes, here.free_bytes - above), is_of_step=is_of_step)
    free_segments = here.segments.take(here.segments["live_blocks"] == 0)
    released = max(here.releasable_bytes - above, 0)
    largest = int(free_segments["largest_free_bytes"].max(initial=0))
    yield UnusableMemory(Cause.SIZES, released, len(free_segments), released, largest_bytes=largest)


def describe_pinned(trace: RecordedTrace, fragmentation: Fragmentation, unit_age_ns: int = 0) -> UnusableMemory:
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


def _describe_elsewhere(
    cause: Cause, segments: Table, is_part: npt.NDArray[np.bool_], owners: Sequence[object]
) -> UnusableMemory:
    return UnusableMemory(
        cause,
        int(segments["free_bytes"][is_part].sum()),
        len({owner for owner, is_selected in zip(owners, is_part.tolist(), strict=True) if is_selected}),
        int(segments["total_bytes"][is_part].sum()),
    )
