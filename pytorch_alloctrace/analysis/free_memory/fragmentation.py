"""How the free memory of a device is cut up at a position, and which live blocks keep it so."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.dtypes import no_rows
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace, blocks_by_stack
from ...reading.replay import external_fragmentation
from .allocator import AllocatorSettings, SettingsHistory
from .pinning import LINE_COLUMNS, PINNER_COLUMNS, Pinning, pinners, pinners_by_line, pinning

_SEGMENT_COLUMNS = (
    *("address", "total_size", "allocated_size", "active_size", "free_size", "stranded", "largest_free"),
    *("live_blocks", "stream", "segment_type", "segment_pool_id", "is_expandable"),
)
_POOL_COLUMNS = (
    *("segment_pool_id", "stream", "segment_type", "segments", "total_size", "active_size", "free_size"),
    *("largest_free", "pieces", "external_fragmentation"),
)
_LARGEST = 1 << 62
_BIRTHS = dict.fromkeys(("birth_seq", "age_ns", "oldest_age_ns", "step"), "Int64")
"""Unknown for what is older than the recording."""
_CLASS_COLUMNS = ("from_size", "to_size", "pieces", "bytes", "share")


@dataclass(frozen=True, eq=False)
class Pinned:
    """The state that pinners are found in; they are named only if somebody asks."""

    trace: RecordedTrace
    found: Pinning
    segments: pd.DataFrame
    blocks: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Fragmentation:
    """The free memory of one device at a position. Bytes are those of blocks, after rounding and splitting; the terms
    are those of docs/reading.md."""

    device: str
    """Torch's spelling."""
    at: int
    """The event after which it was so: the position that was asked for."""
    reserved: int
    """All segments."""
    active: int
    """Blocks in use, or freed and still awaited by another stream."""
    free: int
    """reserved - active: all free pieces."""
    releasable: int
    """In segments and mapping units that are wholly free."""
    stranded: int
    """In those where something is live."""
    largest_free: int
    """The largest free piece."""
    external_fragmentation: float
    """1 - largest free piece / all free bytes; 0 if nothing is free."""
    segments: pd.DataFrame = field(repr=False)
    """One row per segment, by address: address, total_size, allocated_size, active_size, free_size, stranded,
    largest_free, live_blocks, stream, segment_type, segment_pool_id, is_expandable."""
    pools: pd.DataFrame = field(repr=False)
    """A request is served from only one pool of one stream. One row for each: segment_pool_id ((0, 0): not private),
    stream, segment_type, segments, total_size, active_size, free_size, largest_free, pieces, external_fragmentation."""
    free_pieces: pd.DataFrame = field(repr=False)
    """By powers of two: from_size, to_size (not included), pieces, bytes, share (of all free bytes)."""
    sizes: npt.NDArray[np.int64] = field(repr=False)
    """Sizes of the free pieces, in bytes, ascending."""
    settings: AllocatorSettings = field(repr=False)
    """The allocator's settings at that position."""
    pinned: Pinned | None = field(repr=False)
    """What the pinners are made of; None if nothing is reserved."""

    @functools.cached_property
    def pinners(self) -> pd.DataFrame:
        """See `pinning.pinners`: the live blocks in mostly free segments, most stranded bytes first."""
        if self.pinned is None:
            return no_rows(PINNER_COLUMNS, **_BIRTHS)
        return pinners(self.pinned.trace, self.pinned.found, self.pinned.segments, self.pinned.blocks)

    @functools.cached_property
    def pinners_by_line(self) -> pd.DataFrame:
        """See `pinning.pinners_by_line`: the same by line of user code."""
        if self.pinned is None:
            return no_rows(LINE_COLUMNS, **_BIRTHS)
        return pinners_by_line(self.pinned.trace.stacks, self.pinned.found, self.pinned.blocks)

    def index(self, size: int) -> float:
        """The share of the free bytes that lies in pieces too small for a request of `size` bytes, 0 to 1; 0 if
        nothing is free."""
        return float(self.sizes[: np.searchsorted(self.sizes, size)].sum()) / self.free if self.free else 0.0


def fragmentation_at(
    trace: RecordedTrace, at: Position = "end", *, device: str | None = None, is_last: bool = False
) -> Fragmentation:
    """See `Trace.fragmentation`. is_last: nothing else will be asked of this position."""
    device = trace.named_device(device)
    at = trace.first_event_after(at, device) - 1
    segments = trace.segments(at, device=device)
    if device is None:
        reserved = segments.groupby("device")["total_size"].sum()
        device = str(reserved.idxmax()) if len(reserved) else next(iter(trace.known_devices), "")
    segments = segments[segments["device"] == device].sort_values("address", ignore_index=True)
    settings = SettingsHistory(trace).before(device, at + 1)
    if segments.empty:
        return _nothing(device, at, settings)
    blocks = blocks_by_stack(trace, at, device)
    if is_last:
        trace.replay.let_go()
    is_inside = blocks["segment"] != 0
    if not is_inside.all():
        blocks = blocks[is_inside].reset_index(drop=True)
    return fragmentation_of(trace, at, device, segments, blocks, settings)


def fragmentation_by_device(
    trace: RecordedTrace, at: Position = "end", *, device: str | None = None
) -> list[Fragmentation]:
    """`fragmentation_at` of one device, or of all that have segments at a position, the one with the most first; where
    none has, of the first device."""
    # A peak is one device's: the others are shown as they were at that time.
    at = trace.first_event_after(at, device) - 1
    if device is not None:
        return [fragmentation_at(trace, at, device=device)]
    reserved = trace.segments(at).groupby("device")["total_size"].sum().sort_values(ascending=False)
    devices = [str(name) for name in reserved.index] or trace.devices[:1]
    return [fragmentation_at(trace, at, device=name) for name in devices]


def fragmentation_of(
    trace: RecordedTrace,
    at: int,
    device: str,
    segments: pd.DataFrame,
    blocks: pd.DataFrame,
    settings: AllocatorSettings,
) -> Fragmentation:
    """The same from segments (by address) and blocks of a device that are already known."""
    if segments.empty:
        return _nothing(device, at, settings)
    # A damaged trace may have sizes that no signed number can hold.
    segments = segments.assign(total_size=np.minimum(segments["total_size"], _LARGEST))
    blocks = blocks.assign(nbytes=np.minimum(blocks["nbytes"], _LARGEST))
    found = pinning(segments, blocks, settings)
    is_free = (blocks["state"] == "inactive").to_numpy(bool)
    nbytes = blocks["nbytes"].to_numpy(np.int64)
    row = np.searchsorted(segments["address"].to_numpy(np.uint64), blocks["segment"].to_numpy(np.uint64))
    free_size, largest_free = np.zeros((2, len(segments)), dtype=np.int64)
    np.add.at(free_size, row[is_free], nbytes[is_free])
    np.maximum.at(largest_free, row[is_free], nbytes[is_free])
    per_segment = segments.assign(
        stranded=found.stranded_by_segment,
        free_size=free_size,
        largest_free=largest_free,
        live_blocks=np.bincount(row[~is_free], minlength=len(segments)),
        pieces=np.bincount(row[is_free], minlength=len(segments)),
    )
    sizes = np.sort(nbytes[is_free])
    largest, free = int(sizes.max(initial=0)), int(sizes.sum())
    return Fragmentation(
        device=device,
        at=at,
        reserved=int(segments["total_size"].sum()),
        active=int(segments["active_size"].sum()),
        free=free,
        releasable=found.releasable,
        stranded=found.stranded,
        largest_free=largest,
        external_fragmentation=float(external_fragmentation(pd.Series([largest]), pd.Series([free])).iloc[0]),
        segments=per_segment[list(_SEGMENT_COLUMNS)],
        pools=_pools(per_segment),
        free_pieces=_classes(sizes),
        sizes=sizes,
        settings=settings,
        pinned=Pinned(trace, found, segments, blocks),
    )


def _pools(segments: pd.DataFrame) -> pd.DataFrame:
    names = ["segment_pool_id", "stream", "segment_type"]
    number = np.zeros(len(segments), np.int64)
    for name in names:
        codes, values = pd.factorize(segments[name])
        number = number * len(values) + codes
    _, first, pool = np.unique(number, return_index=True, return_inverse=True)
    keys = list(zip(*(segments[name].iloc[first] for name in names), strict=True))
    by_key = sorted(range(len(keys)), key=keys.__getitem__)
    pool = np.argsort(by_key)[pool]
    known = [keys[place] for place in by_key]
    groups = pd.DataFrame(known, columns=names)
    groups["segments"] = np.bincount(pool, minlength=len(known))
    for name in ("total_size", "active_size", "free_size", "pieces"):
        held = np.zeros(len(known), dtype=np.int64)
        np.add.at(held, pool, segments[name].to_numpy(np.int64))
        groups[name] = held
    largest = np.zeros(len(known), dtype=np.int64)
    np.maximum.at(largest, pool, segments["largest_free"].to_numpy(np.int64))
    groups["largest_free"] = largest
    groups["external_fragmentation"] = external_fragmentation(groups["largest_free"], groups["free_size"])
    return groups.sort_values("total_size", ascending=False, ignore_index=True)[list(_POOL_COLUMNS)]


def _classes(sizes: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Free pieces by powers of two, including the empty classes between the smallest and the largest."""
    if not len(sizes):
        return no_rows(_CLASS_COLUMNS)
    # Not log2: it would round 2^49 - 512 up.
    classes = np.array([int(size).bit_length() - 1 for size in np.unique(sizes)])
    lower = np.int64(1) << np.arange(classes.min(), classes.max() + 1, dtype=np.int64)
    at = np.searchsorted(lower, sizes, side="right") - 1
    held = np.zeros(len(lower), dtype=np.int64)
    np.add.at(held, at, sizes)
    return pd.DataFrame(
        {
            "from_size": lower,
            "to_size": lower * 2,
            "pieces": np.bincount(at, minlength=len(lower)),
            "bytes": held,
            "share": held / held.sum(),
        }
    )


def _nothing(device: str, at: int, settings: AllocatorSettings) -> Fragmentation:
    return Fragmentation(
        device=device,
        at=at,
        reserved=0,
        active=0,
        free=0,
        releasable=0,
        stranded=0,
        largest_free=0,
        external_fragmentation=0.0,
        segments=no_rows(_SEGMENT_COLUMNS),
        pools=no_rows(_POOL_COLUMNS),
        free_pieces=no_rows(_CLASS_COLUMNS),
        sizes=np.array([], dtype=np.int64),
        settings=settings,
        pinned=None,
    )
