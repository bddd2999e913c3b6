"""Peak memory of a device in the whole run or a range, and its composition."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import PositionError
from ...reading.frees import were_not_requested
from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.replay import Peak
from ...reading.table import ALLOCATED, Table
from ...reading.timeline import POINTS
from .composition import composition_of
from .tree import tree_of

if TYPE_CHECKING:
    import pandas as pd

_MAX_STATES = 32
"""Maximum number of states to compute in an interval that is only partly in the range."""
_RESERVED_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True, eq=False)
class PeakMemory:
    """Maximum memory of a device. Its composition is computed on first use."""

    device: str
    """Device in torch's spelling."""
    measure: str
    """Measured quantity: allocated or reserved."""
    bytes: int
    """Peak in bytes."""
    seq: int
    """Event that reached the peak: the peak is the state after it."""
    time_ns: int
    """Time of the event in nanoseconds since 1970-01-01 UTC."""
    step: int | None
    """Step of the event; None if the trace has no steps."""
    _trace: RecordedTrace = field(repr=False)

    @functools.cached_property
    def requested_bytes(self) -> int:
        """Live bytes at the peak as the program requested them: the sum of `usage`."""
        return int(self._live["requested_bytes"].sum())

    @functools.cached_property
    def reserved_bytes(self) -> int | None:
        """Bytes reserved from the driver at the peak; None if the allocator reports no segments."""
        segments = self._trace.replay.segments(self.seq + 1, self.device)["total_bytes"]
        return int(segments.sum()) if len(segments) else None

    def usage(self, by: str = "line") -> pd.DataFrame:
        """Return the composition of the memory at the peak: `Trace.usage` on its device.

        Args:
            by: As in `Trace.usage` at a position.

        Returns:
            One row per group. Requested bytes.
        """
        if by == "call":
            return tree_of(self._trace, self._live).to_frame()
        return self.composition(by).to_frame()

    def composition(self, by: str) -> Table:
        """Return the composition at the peak as columns.

        Args:
            by: As in `usage`, except "call".

        Returns:
            The columns of `usage`.
        """
        return composition_of(self._trace, self._live, by, self.seq + 1)

    @functools.cached_property
    def _live(self) -> Table:
        return self._trace.replay.live(self.seq + 1, self.device)


def peak_memory(trace: RecordedTrace, measure: str, *, device: str | None = None) -> PeakMemory:
    """Implement `Trace.peak` for the whole run."""
    if measure not in ("allocated", "reserved"):
        raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
    device = trace.named_device(device)
    peaks = {name: trace.replay.peak(measure, name) for name in trace.devices if device in (None, name)}
    existing_peaks = {name: value for name, value in peaks.items() if value is not None}
    device = max(existing_peaks, key=lambda name: existing_peaks[name].bytes, default=device)
    peak = existing_peaks.get(device or "")
    if device is None or peak is None:
        measured = "allocated" if measure == "allocated" else "reserved, or its allocator does not report it"
        raise PositionError(f"the trace has no peak of {device or 'any device'}: nothing was {measured}")
    return _make_peak_memory(trace, peak, device, measure)


def _make_peak_memory(trace: RecordedTrace, peak: Peak, device: str, measure: str) -> PeakMemory:
    step = trace.positions.step_at(peak.seq)
    return PeakMemory(device, measure, peak.bytes, peak.seq, peak.time_ns, step, trace)


def peak_between(trace: RecordedTrace, within: Range, measure: str, *, device: str | None = None) -> PeakMemory:
    """Return the peak within a range, including the state at its beginning."""
    if measure not in ("allocated", "reserved"):
        raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
    device = trace.named_device(device)
    find_peak = _find_allocated_peak if measure == "allocated" else _find_reserved_peak
    peaks = {name: find_peak(trace, within, name) for name in trace.devices if device in (None, name)}
    name = max(peaks, key=lambda name: peaks[name].bytes, default="")
    if name not in peaks or not peaks[name].bytes:
        measured = "allocated" if measure == "allocated" else "reserved, or its allocator does not report it"
        raise PositionError(f"there is no peak of {device or 'any device'} in this range: nothing was {measured}")
    return _make_peak_memory(trace, peaks[name], name, measure)


def peak_of_ranges(
    trace: RecordedTrace, ranges: Sequence[Range], measure: str, *, device: str | None = None
) -> PeakMemory:
    """Return the highest `peak_between` of the ranges; ranges without a peak are left out."""
    if len(ranges) == 1:
        return peak_between(trace, ranges[0], measure, device=device)
    peaks = []
    for within in ranges:
        with contextlib.suppress(PositionError):
            peaks.append(peak_between(trace, within, measure, device=device))
    if not peaks:
        raise PositionError(f"there is no peak of {device or 'any device'} in these {len(ranges):,} ranges")
    return max(peaks, key=lambda peak: peak.bytes)


def _find_allocated_peak(trace: RecordedTrace, within: Range, device: str) -> Peak:
    """Return the peak of allocated bytes in a range.

    The timeline has the event with the maximum of each interval. In the intervals at the ends of the range, this event
    may lie outside the range: there the states at the local maxima are computed. The event is 0 in intervals without
    events, whose bytes were reached before.
    """
    table = trace.timeline(POINTS, device)
    events, sizes = table["seq"], table["allocated_bytes_max"]
    is_in_range = within.has(events) & (events > 0)
    candidates = {within.first - 1}
    if is_in_range.any():
        candidates.add(int(events[is_in_range][sizes[is_in_range].argmax()]))
    times = np.append(table["time_ns"], trace.end_ns)
    for border in (within.first, within.until):
        interval = int(np.clip(np.searchsorted(times, trace.time_ns(border), side="right") - 1, 0, len(table) - 1))
        if not is_in_range[interval]:
            candidates.update(_find_local_maxima(trace, within, device, *times[interval : interval + 2].tolist()))
    return _choose_highest(trace, {seq: _allocated_bytes(trace, seq, device) for seq in candidates})


def _find_local_maxima(trace: RecordedTrace, within: Range, device: str, begin_ns: int, end_ns: int) -> list[int]:
    """Return the events of a range, between two times, at the highest local maxima of allocated bytes."""
    # An event exactly at the end of an interval belongs to the next one.
    begin, end = trace.first_event_after_time(begin_ns - 1), trace.first_event_after_time(end_ns)
    begin = max(begin, within.first) if begin_ns > trace.begin_ns else within.first
    within = Range(begin, min(end, within.end))
    seqs, kinds, addresses, sizes = _read_events(trace, within, ("alloc", *FREES), device)
    # A block counts as allocated until its free is requested.
    is_completed = kinds == KINDS.index("free_completed")
    devices = np.full(len(seqs), device, dtype=object)
    counts = ~is_completed | were_not_requested(trace, seqs, kinds, devices, addresses)
    is_alloc = kinds[counts] == KINDS.index("alloc")
    level = np.cumsum(np.where(is_alloc, 1, -1) * sizes[counts])
    maxima = np.flatnonzero(is_alloc & ~np.append(is_alloc[1:], False))
    highest = maxima[np.argsort(-level[maxima], kind="stable")[:_MAX_STATES]]
    return [int(seq) for seq in seqs[counts][highest]]


def _read_events(trace: RecordedTrace, within: Range, kinds: Sequence[str], device: str) -> list[npt.NDArray[np.int64]]:
    names = ("seq", "kind", "address", "requested_bytes")
    parts = [
        events.take(trace.devices_of(events) == device).select(*names) for events in trace.iter_events(within, kinds)
    ]
    empty = np.zeros(0, np.int64)
    return [np.concatenate([empty, *(part[name].astype(np.int64) for part in parts)]) for name in names]


def _find_reserved_peak(trace: RecordedTrace, within: Range, device: str) -> Peak:
    seqs, kinds, _, sizes = _read_events(trace, within, tuple(_RESERVED_SIGNS), device)
    signs = np.array([_RESERVED_SIGNS.get(kind, 0) for kind in KINDS], np.int64)
    level = np.cumsum(signs[kinds] * sizes)
    candidates = {within.first - 1}
    if len(level):
        candidates.add(int(seqs[int(level.argmax())]))
    return _choose_highest(
        trace, {seq: int(trace.replay.segments(seq + 1, device)["total_bytes"].sum()) for seq in candidates}
    )


def _allocated_bytes(trace: RecordedTrace, seq: int, device: str) -> int:
    blocks = trace.replay.blocks(seq + 1, device)
    return int(blocks["block_bytes"][blocks["state"] == ALLOCATED].sum())


def _choose_highest(trace: RecordedTrace, levels: dict[int, int]) -> Peak:
    seq = min(levels, key=lambda seq: (-levels[seq], seq))
    return Peak(levels[seq], seq, trace.time_ns(seq))


_ITEM_BYTES = (4, 1)
_MIN_SIDE, _USUAL_FACTOR = 1000, 64
ROUNDING = 512
"""Bytes to which torch rounds up the size of a failed request."""


def find_square(size: int, rounding: int = 1) -> tuple[int, int] | None:
    """Return N and the bytes of an element if N x N elements of a usual type have this size, rounded up; else None.

    Products of widths and batch sizes, mostly multiples of powers of two, may be squares by coincidence.
    """
    for item_bytes in _ITEM_BYTES:
        side = math.isqrt(size // item_bytes)
        if side >= _MIN_SIDE and side % _USUAL_FACTOR and size - side * side * item_bytes < rounding:
            return side, item_bytes
    return None
