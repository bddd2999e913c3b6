"""Fragmentation of the free memory of a device at a position, and the live blocks that cause it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..._replay import AllocatorSettings
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.replay import external_fragmentation
from ...reading.sites import SiteBytes, sites_of_blocks, top_sites
from ...reading.table import INACTIVE, Table, maxima, sums, texts
from .allocator import SettingsHistory
from .pinning import Pinning, pinners, pinners_by_line, pinning

_SEGMENT_COLUMNS = (
    *("address", "total_bytes", "allocated_bytes", "active_bytes", "free_bytes", "stranded_bytes"),
    *("largest_free_bytes", "live_blocks", "stream", "segment_type", "segment_pool_id", "is_expandable"),
)
_POOL_KEY = ("segment_pool_id", "stream", "segment_type")
_MAX_SIZE = 1 << 62


@dataclass(frozen=True, eq=False)
class Pinned:
    """The state that pinners are computed from on first use."""

    trace: RecordedTrace
    pinning: Pinning
    segments: Table
    blocks: Table


@dataclass(frozen=True, eq=False)
class Fragmentation:
    """Free memory of one device at a position.

    Sizes are bytes of blocks, after rounding and splitting. docs/reading.md defines the terms.
    """

    device: str
    """Device in torch's spelling."""
    at: int
    """Event after which the memory was in this state."""
    reserved_bytes: int
    """Bytes of all segments."""
    active_bytes: int
    """Bytes of blocks that are in use, or freed and still awaited by another stream."""
    free_bytes: int
    """Bytes of all free pieces: reserved - active."""
    releasable_bytes: int
    """Free bytes in wholly free segments and mapping units."""
    stranded_bytes: int
    """Free bytes in segments and mapping units with live blocks."""
    largest_free_bytes: int
    """Bytes of the largest free piece."""
    external_fragmentation: float
    """1 - largest free piece / all free bytes; 0 if nothing is free."""
    segments: Table = field(repr=False)
    """One row per segment, by address.

    Columns: address, total_bytes, allocated_bytes, active_bytes, free_bytes, stranded_bytes, largest_free_bytes,
    live_blocks, stream, segment_type, segment_pool_id, is_expandable.
    """
    pools: Table = field(repr=False)
    """One row per pool and stream: a request is served from only one of them.

    Columns: segment_pool_id ((0, 0): not private), stream, segment_type, segments, total_bytes, active_bytes,
    free_bytes, largest_free_bytes, pieces, external_fragmentation.
    """
    free_pieces: Table = field(repr=False)
    """Free pieces by powers of two: from_bytes, to_bytes (exclusive), pieces, free_bytes, share (of all free bytes)."""
    sizes: npt.NDArray[np.int64] = field(repr=False)
    """Sizes of the free pieces in bytes, ascending."""
    settings: AllocatorSettings = field(repr=False)
    """Settings of the allocator at the position."""
    _pinned: Pinned = field(repr=False)

    @property
    def releasable_bytes_of_pools(self) -> int:
        """Part of `releasable_bytes` in private pools (CUDA graphs, MemPool): not returned while the pools exist."""
        segments = self.segments
        is_private = np.array([tuple(pool) != (0, 0) for pool in segments["segment_pool_id"].tolist()], np.bool_)
        return int((segments["free_bytes"] - segments["stranded_bytes"])[is_private].sum())

    def part(self, is_in_part: npt.NDArray[np.bool_]) -> Fragmentation:
        """Return the fragmentation of some of `segments`."""
        state = self._pinned
        segments = state.segments.take(is_in_part)
        is_part_block = np.isin(state.blocks["segment"], segments["address"])
        return fragmentation_of(
            state.trace, self.at, self.device, segments, state.blocks.take(is_part_block), self.settings
        )

    @functools.cached_property
    def pinners(self) -> Table:
        """Live blocks in mostly free segments, the most stranded bytes first: see `pinning.pinners`."""
        return pinners(self._pinned.trace, self._pinned.pinning, self._pinned.segments, self._pinned.blocks)

    @property
    def main_line(self) -> SiteBytes | None:
        """Line with half or more of the live bytes in segments that have stranded memory; None if there is none."""
        state, segments = self._pinned, self.segments
        stranded = segments["address"][segments["stranded_bytes"] > 0]
        live = state.blocks.take((state.blocks["state"] != INACTIVE) & np.isin(state.blocks["segment"], stranded))
        lines = top_sites(state.trace.stacks, sites_of_blocks(state.trace.stacks, live), 1)
        return lines[0] if lines and 2 * lines[0].bytes >= int(live["requested_bytes"].sum()) else None

    @functools.cached_property
    def pinners_by_line(self) -> Table:
        """The pinners by line of user code: see `pinning.pinners_by_line`."""
        return pinners_by_line(self._pinned.trace.stacks, self._pinned.pinning, self._pinned.blocks)

    def index(self, size: int) -> float:
        """Return the share of the free bytes in pieces that are too small for a request.

        Args:
            size: Size of the request in bytes.

        Returns:
            0 to 1; 0 if nothing is free.
        """
        return (
            float(self.sizes[: np.searchsorted(self.sizes, size)].sum()) / self.free_bytes if self.free_bytes else 0.0
        )


def fragmentation_at(trace: RecordedTrace, at: Position = "end", *, device: str | None = None) -> Fragmentation:
    """Implement `Trace.fragmentation`."""
    device = trace.named_device(device)
    until = trace.first_event_after(at, device)
    if device is None:
        reserved = _reserved_by_device(trace, until)
        device = next(iter([*reserved, *trace.known_devices]), "")
    segments, blocks = trace.replay.segments(until, device), blocks_with_steps(trace, until, device)
    settings = SettingsHistory(trace).before(device, until)
    return fragmentation_of(trace, until - 1, device, segments, blocks.take(blocks["segment"] != 0), settings)


def fragmentation_by_device(
    trace: RecordedTrace, at: Position = "end", *, device: str | None = None
) -> list[Fragmentation]:
    """Return `fragmentation_at` of a device or of all with segments (else the first), the most reserved bytes first."""
    # The peak of one device is the position for all devices.
    until = trace.first_event_after(at, device)
    devices = [device] if device is not None else [*_reserved_by_device(trace, until)] or trace.devices[:1]
    return [fragmentation_at(trace, until - 1, device=name) for name in devices]


def _reserved_by_device(trace: RecordedTrace, until: int) -> dict[str, int]:
    """Return the reserved bytes of each device that has segments before an event, the most first."""
    segments = {name: trace.replay.segments(until, name)["total_bytes"] for name in trace.replay.devices}
    reserved = {name: int(sizes.sum()) for name, sizes in segments.items() if len(sizes)}
    return dict(sorted(reserved.items(), key=lambda item: -item[1]))


def blocks_with_steps(trace: RecordedTrace, until: int, device: str) -> Table:
    """Return `Replay.blocks` with a column step: the step of the allocation, missing if unknown."""
    blocks = trace.replay.blocks(until, device)
    unknown = (blocks["state"] == INACTIVE) | blocks["older"]
    return blocks.assign(step=trace.positions.step_of(blocks["alloc_seq"], unknown=unknown))


def fragmentation_of(
    trace: RecordedTrace, at: int, device: str, segments: Table, blocks: Table, settings: AllocatorSettings
) -> Fragmentation:
    """Return the fragmentation of segments (`Replay.segments`) and their blocks (`blocks_with_steps`)."""
    segments = segments.take(np.argsort(segments["address"].view(np.uint64), kind="stable"))
    # Sizes in a corrupt trace are clipped: their sum could overflow int64.
    segments = segments.assign(total_bytes=np.minimum(segments["total_bytes"], _MAX_SIZE))
    blocks = blocks.assign(block_bytes=np.minimum(blocks["block_bytes"], _MAX_SIZE))
    pinned = pinning(segments, blocks, settings)
    is_free = blocks["state"] == INACTIVE
    count = len(segments)
    segment_row = np.searchsorted(segments["address"].view(np.uint64), blocks["segment"].view(np.uint64))
    free_sizes = blocks["block_bytes"][is_free]
    per_segment = segments.assign(
        stranded_bytes=pinned.stranded_by_segment,
        free_bytes=sums(segment_row[is_free], free_sizes, count),
        largest_free_bytes=maxima(segment_row[is_free], free_sizes, count),
        live_blocks=np.bincount(segment_row[~is_free], minlength=count),
        pieces=np.bincount(segment_row[is_free], minlength=count),
        segment_type=texts(np.where(segments["is_large"], "large", "small").tolist()),
    )
    free_sizes = np.sort(free_sizes)
    largest, free = int(free_sizes.max(initial=0)), int(free_sizes.sum())
    return Fragmentation(
        device=device,
        at=at,
        reserved_bytes=int(segments["total_bytes"].sum()),
        active_bytes=int(segments["active_bytes"].sum()),
        free_bytes=free,
        releasable_bytes=pinned.releasable,
        stranded_bytes=pinned.stranded,
        largest_free_bytes=largest,
        external_fragmentation=float(external_fragmentation(np.int64(largest), np.int64(free))),
        segments=per_segment.select(*_SEGMENT_COLUMNS),
        pools=_summarize_pools(per_segment),
        free_pieces=_group_free_pieces(free_sizes),
        sizes=free_sizes,
        settings=settings,
        _pinned=Pinned(trace, pinned, segments, blocks),
    )


def _summarize_pools(segments: Table) -> Table:
    keys = list(zip(*(segments[name].tolist() for name in _POOL_KEY), strict=True))
    distinct_keys = sorted(set(keys))
    number = {key: index for index, key in enumerate(distinct_keys)}
    pool, count = np.array([number[key] for key in keys], np.int64), len(distinct_keys)
    pools, streams, types = zip(*distinct_keys, strict=True) if distinct_keys else ((), (), ())
    free, largest = sums(pool, segments["free_bytes"], count), maxima(pool, segments["largest_free_bytes"], count)
    table = Table(
        {
            "segment_pool_id": texts(pools),
            "stream": np.array(streams, np.int64),
            "segment_type": texts(types),
            "segments": np.bincount(pool, minlength=count),
            "total_bytes": sums(pool, segments["total_bytes"], count),
            "active_bytes": sums(pool, segments["active_bytes"], count),
            "free_bytes": free,
            "largest_free_bytes": largest,
            "pieces": sums(pool, segments["pieces"], count),
            "external_fragmentation": external_fragmentation(largest, free),
        }
    )
    return table.take(np.argsort(-table["total_bytes"], kind="stable"))


def _group_free_pieces(sizes: npt.NDArray[np.int64]) -> Table:
    """Return the free pieces by powers of two, with the empty classes between the smallest and the largest."""
    # Not log2, which would round 2^49 - 512 up.
    classes = [int(size[0]).bit_length() - 1 for size in (sizes[:1], sizes[-1:]) if len(size)]
    lower = np.int64(1) << np.arange(classes[0], classes[1] + 1, dtype=np.int64) if classes else np.zeros(0, np.int64)
    class_index = np.searchsorted(lower, sizes, side="right") - 1
    class_bytes = sums(class_index, sizes, len(lower))
    return Table(
        {
            "from_bytes": lower,
            "to_bytes": lower * 2,
            "pieces": np.bincount(class_index, minlength=len(lower)),
            "free_bytes": class_bytes,
            "share": class_bytes / max(int(class_bytes.sum()), 1),
        }
    )
