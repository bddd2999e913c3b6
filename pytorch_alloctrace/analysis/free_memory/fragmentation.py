"""How the free memory of a device is cut up at a position, and which live blocks keep it so."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..._replay import AllocatorSettings
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.replay import external_fragmentation
from ...reading.table import INACTIVE, Table, maxima, sums, texts
from .allocator import SettingsHistory
from .pinning import Pinning, pinners, pinners_by_line, pinning

_SEGMENT_COLUMNS = (
    *("address", "total_bytes", "allocated_bytes", "active_bytes", "free_bytes", "stranded_bytes"),
    *("largest_free_bytes", "live_blocks", "stream", "segment_type", "segment_pool_id", "is_expandable"),
)
_POOL_KEY = ("segment_pool_id", "stream", "segment_type")
_LARGEST = 1 << 62


@dataclass(frozen=True, eq=False)
class Pinned:
    """The state that pinners are found in; they are named only if somebody asks."""

    trace: RecordedTrace
    found: Pinning
    segments: Table
    blocks: Table


@dataclass(frozen=True, eq=False)
class Fragmentation:
    """The free memory of one device at a position. Bytes are those of blocks, after rounding and splitting; the terms
    are those of docs/reading.md."""

    device: str
    """Torch's spelling."""
    at: int
    """The event after which it was so: the position that was asked for."""
    reserved_bytes: int
    """All segments."""
    active_bytes: int
    """Blocks in use, or freed and still awaited by another stream."""
    free_bytes: int
    """reserved - active: all free pieces."""
    releasable_bytes: int
    """In segments and mapping units that are wholly free."""
    stranded_bytes: int
    """In those where something is live."""
    largest_free_bytes: int
    """The largest free piece."""
    external_fragmentation: float
    """1 - largest free piece / all free bytes; 0 if nothing is free."""
    segments: Table = field(repr=False)
    """One row per segment, by address: address, total_bytes, allocated_bytes, active_bytes, free_bytes, stranded_bytes,
    largest_free_bytes, live_blocks, stream, segment_type, segment_pool_id, is_expandable."""
    pools: Table = field(repr=False)
    """A request is served from only one pool of one stream. One row for each: segment_pool_id ((0, 0): not private),
    stream, segment_type, segments, total_bytes, active_bytes, free_bytes, largest_free_bytes, pieces,
    external_fragmentation."""
    free_pieces: Table = field(repr=False)
    """By powers of two: from_bytes, to_bytes (not included), pieces, free_bytes, share (of all free bytes)."""
    sizes: npt.NDArray[np.int64] = field(repr=False)
    """Sizes of the free pieces, in bytes, ascending."""
    settings: AllocatorSettings = field(repr=False)
    """The allocator's settings at that position."""
    _pinned: Pinned = field(repr=False)

    @functools.cached_property
    def pinners(self) -> Table:
        """See `pinning.pinners`: the live blocks in mostly free segments, most stranded bytes first."""
        return pinners(self._pinned.trace, self._pinned.found, self._pinned.segments, self._pinned.blocks)

    @functools.cached_property
    def pinners_by_line(self) -> Table:
        """See `pinning.pinners_by_line`: the same by line of user code."""
        return pinners_by_line(self._pinned.trace.stacks, self._pinned.found, self._pinned.blocks)

    def index(self, size: int) -> float:
        """The share of the free bytes that lies in pieces too small for a request of `size` bytes, 0 to 1; 0 if
        nothing is free."""
        return (
            float(self.sizes[: np.searchsorted(self.sizes, size)].sum()) / self.free_bytes if self.free_bytes else 0.0
        )


def fragmentation_at(trace: RecordedTrace, at: Position = "end", *, device: str | None = None) -> Fragmentation:
    """See `Trace.fragmentation`."""
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
    """Return `fragmentation_at` of one device, or of all that have segments at a position, the one with the most first;
    where none has, of the first device."""
    # A peak is one device's: the others are shown as they were at that time.
    until = trace.first_event_after(at, device)
    devices = [device] if device is not None else [*_reserved_by_device(trace, until)] or trace.devices[:1]
    return [fragmentation_at(trace, until - 1, device=name) for name in devices]


def _reserved_by_device(trace: RecordedTrace, until: int) -> dict[str, int]:
    """Return what is reserved of each device that has segments before an event, the most first."""
    segments = {name: trace.replay.segments(until, name)["total_bytes"] for name in trace.replay.devices}
    reserved = {name: int(sizes.sum()) for name, sizes in segments.items() if len(sizes)}
    return dict(sorted(reserved.items(), key=lambda item: -item[1]))


def blocks_with_steps(trace: RecordedTrace, until: int, device: str) -> Table:
    """Return `Replay.blocks` with the column step, that of their birth: missing where that is unknown."""
    blocks = trace.replay.blocks(until, device)
    unknown = (blocks["state"] == INACTIVE) | blocks["older"]
    return blocks.assign(step=trace.positions.step_of(blocks["alloc_seq"], unknown=unknown))


def fragmentation_of(
    trace: RecordedTrace, at: int, device: str, segments: Table, blocks: Table, settings: AllocatorSettings
) -> Fragmentation:
    """Return the same from segments (`Replay.segments`) and their blocks (`blocks_with_steps`)."""
    segments = segments.take(np.argsort(segments["address"].view(np.uint64), kind="stable"))
    # A damaged trace may have sizes that no sum can hold.
    segments = segments.assign(total_bytes=np.minimum(segments["total_bytes"], _LARGEST))
    blocks = blocks.assign(block_bytes=np.minimum(blocks["block_bytes"], _LARGEST))
    found = pinning(segments, blocks, settings)
    is_free = blocks["state"] == INACTIVE
    count = len(segments)
    row = np.searchsorted(segments["address"].view(np.uint64), blocks["segment"].view(np.uint64))
    sizes = blocks["block_bytes"][is_free]
    per_segment = segments.assign(
        stranded_bytes=found.stranded_by_segment,
        free_bytes=sums(row[is_free], sizes, count),
        largest_free_bytes=maxima(row[is_free], sizes, count),
        live_blocks=np.bincount(row[~is_free], minlength=count),
        pieces=np.bincount(row[is_free], minlength=count),
        segment_type=texts(np.where(segments["is_large"], "large", "small").tolist()),
    )
    sizes = np.sort(sizes)
    largest, free = int(sizes.max(initial=0)), int(sizes.sum())
    return Fragmentation(
        device=device,
        at=at,
        reserved_bytes=int(segments["total_bytes"].sum()),
        active_bytes=int(segments["active_bytes"].sum()),
        free_bytes=free,
        releasable_bytes=found.releasable,
        stranded_bytes=found.stranded,
        largest_free_bytes=largest,
        external_fragmentation=float(external_fragmentation(np.int64(largest), np.int64(free))),
        segments=per_segment.select(*_SEGMENT_COLUMNS),
        pools=_pools(per_segment),
        free_pieces=_classes(sizes),
        sizes=sizes,
        settings=settings,
        _pinned=Pinned(trace, found, segments, blocks),
    )


def _pools(segments: Table) -> Table:
    keys = list(zip(*(segments[name].tolist() for name in _POOL_KEY), strict=True))
    distinct = sorted(set(keys))
    number = {key: place for place, key in enumerate(distinct)}
    pool, count = np.array([number[key] for key in keys], np.int64), len(distinct)
    pools, streams, types = zip(*distinct, strict=True) if distinct else ((), (), ())
    free, largest = (
        sums(pool, segments["free_bytes"], count),
        maxima(pool, segments["largest_free_bytes"], count),
    )
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


def _classes(sizes: npt.NDArray[np.int64]) -> Table:
    """Free pieces by powers of two, including the empty classes between the smallest and the largest."""
    # Not log2: it would round 2^49 - 512 up.
    classes = [int(size[0]).bit_length() - 1 for size in (sizes[:1], sizes[-1:]) if len(size)]
    lower = np.int64(1) << np.arange(classes[0], classes[1] + 1, dtype=np.int64) if classes else np.zeros(0, np.int64)
    at = np.searchsorted(lower, sizes, side="right") - 1
    held = sums(at, sizes, len(lower))
    return Table(
        {
            "from_bytes": lower,
            "to_bytes": lower * 2,
            "pieces": np.bincount(at, minlength=len(lower)),
            "free_bytes": held,
            "share": held / max(int(held.sum()), 1),
        }
    )
