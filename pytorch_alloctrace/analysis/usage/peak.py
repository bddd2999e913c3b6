"""The peak of a device, of the whole run or within a range, and what the memory consisted of then."""

from __future__ import annotations

import contextlib
import functools
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

_LOOKED_AT = 32
"""Most events of a part of an interval whose state is looked at."""
_SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
"""Kinds of events that change what is reserved."""


@dataclass(frozen=True, eq=False)
class PeakMemory:
    """The most that a device had at once. What it consisted of is worked out when it is first asked for."""

    device: str
    """Torch's spelling."""
    measure: str
    """"allocated" or "reserved": what was at its highest."""
    bytes: int
    """The peak of that measure."""
    seq: int
    """The event that reached it: the peak is the state after it."""
    time_ns: int
    """Since 1970-01-01 UTC."""
    step: int | None
    """None if the trace has no steps."""
    _trace: RecordedTrace = field(repr=False)

    @functools.cached_property
    def requested_bytes(self) -> int:
        """Live then, in the sizes that the program requested: the sum of `usage`."""
        return int(self._live["requested_bytes"].sum())

    @functools.cached_property
    def reserved_bytes(self) -> int | None:
        """Held from the driver then; None if the allocator reports no segments."""
        segments = self._trace.replay.segments(self.seq + 1, self.device)["total_bytes"]
        return int(segments.sum()) if len(segments) else None

    def usage(self, by: str = "line") -> pd.DataFrame:
        """Return what the memory consisted of then: `Trace.usage` at the peak, on its device."""
        if by == "call":
            return tree_of(self._trace, self._live).to_frame()
        return self.composition(by).to_frame()

    def composition(self, by: str) -> Table:
        """Return the same, by anything but call, as columns."""
        return composition_of(self._trace, self._live, by, self.seq + 1)

    @functools.cached_property
    def _live(self) -> Table:
        return self._trace.replay.live(self.seq + 1, self.device)


def peak_memory(trace: RecordedTrace, measure: str, *, device: str | None = None) -> PeakMemory:
    """See `Trace.peak`."""
    if measure not in ("allocated", "reserved"):
        raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
    device = trace.named_device(device)
    peaks = {name: trace.replay.peak(measure, name) for name in trace.devices if device in (None, name)}
    reached = {name: peak for name, peak in peaks.items() if peak is not None}
    device = max(reached, key=lambda name: reached[name].bytes, default=device)
    found = reached.get(device or "")
    if device is None or found is None:
        kept = "allocated" if measure == "allocated" else "reserved, or its allocator does not report it"
        raise PositionError(f"the trace has no peak of {device or 'any device'}: nothing was {kept}")
    return _memory_at(trace, found, device, measure)


def _memory_at(trace: RecordedTrace, peak: Peak, device: str, measure: str) -> PeakMemory:
    """A peak whose event is known."""
    step = trace.positions.step_at(peak.seq)
    return PeakMemory(device, measure, peak.bytes, peak.seq, peak.time_ns, step, trace)


def peak_between(trace: RecordedTrace, within: Range, measure: str, *, device: str | None = None) -> PeakMemory:
    """As `Trace.peak`, within a range; the state that it begins with counts. Raises PositionError if there is none."""
    if measure not in ("allocated", "reserved"):
        raise ValueError(f"measure={measure!r} is not known: use allocated or reserved")
    device = trace.named_device(device)
    highest = _highest_allocated if measure == "allocated" else _highest_reserved
    peaks = {name: highest(trace, within, name) for name in trace.devices if device in (None, name)}
    name = max(peaks, key=lambda name: peaks[name].bytes, default="")
    if name not in peaks or not peaks[name].bytes:
        kept = "allocated" if measure == "allocated" else "reserved, or its allocator does not report it"
        raise PositionError(f"there is no peak of {device or 'any device'} in this range: nothing was {kept}")
    return _memory_at(trace, peaks[name], name, measure)


def peak_of_ranges(
    trace: RecordedTrace, ranges: Sequence[Range], measure: str, *, device: str | None = None
) -> PeakMemory:
    """The highest of `peak_between` of some ranges. Those in which there is none are left out; raises PositionError if
    that is all of them."""
    if len(ranges) == 1:
        return peak_between(trace, ranges[0], measure, device=device)
    found = []
    for within in ranges:
        with contextlib.suppress(PositionError):
            found.append(peak_between(trace, within, measure, device=device))
    if not found:
        raise PositionError(f"there is no peak of {device or 'any device'} in these {len(ranges):,} ranges")
    return max(found, key=lambda peak: peak.bytes)


def _highest_allocated(trace: RecordedTrace, within: Range, device: str) -> Peak:
    """The replay has measured the highest of each of many intervals, and which event reached it. In the intervals at
    the two borders of the range, that may lie outside the range: there the events show which positions to look at."""
    table = trace.timeline(POINTS, device)
    events, sizes = table["seq"], table["allocated_bytes_max"]
    is_inside = within.has(events)
    looked_at = {within.first - 1}
    if is_inside.any():
        looked_at.add(int(events[is_inside][sizes[is_inside].argmax()]))
    times = np.append(table["time_ns"], trace.end_ns)
    for border in (within.first, within.until):
        interval = int(np.clip(np.searchsorted(times, trace.time_ns(border), side="right") - 1, 0, len(table) - 1))
        if not is_inside[interval]:
            looked_at.update(_rises(trace, within, device, *times[interval : interval + 2].tolist()))
    return _highest(trace, {seq: _allocated(trace, seq, device) for seq in looked_at})


def _rises(trace: RecordedTrace, within: Range, device: str, begin_ns: int, end_ns: int) -> list[int]:
    """The events of a range, between two times, after which the most was requested: the last ones before it fell."""
    # An event exactly at a border belongs to the interval after it.
    begin, end = trace.first_event_after_time(begin_ns - 1), trace.first_event_after_time(end_ns)
    begin = max(begin, within.first) if begin_ns > trace.begin_ns else within.first
    within = Range(begin, min(end, within.end))
    seqs, kinds, addresses, sizes = _events_of(trace, within, ("alloc", *FREES), device)
    # A block is counted until its free is requested.
    is_completed = kinds == KINDS.index("free_completed")
    devices = np.full(len(seqs), device, dtype=object)
    counts = ~is_completed | were_not_requested(trace, seqs, kinds, devices, addresses)
    is_alloc = kinds[counts] == KINDS.index("alloc")
    level = np.cumsum(np.where(is_alloc, 1, -1) * sizes[counts])
    tops = np.flatnonzero(is_alloc & ~np.append(is_alloc[1:], False))
    highest = tops[np.argsort(-level[tops], kind="stable")[:_LOOKED_AT]]
    return [int(seq) for seq in seqs[counts][highest]]


def _events_of(trace: RecordedTrace, within: Range, kinds: Sequence[str], device: str) -> list[npt.NDArray[np.int64]]:
    """Return seq, kind, address and requested_bytes of the events of some kinds of a device."""
    names = ("seq", "kind", "address", "requested_bytes")
    parts = [
        events.take(trace.devices_of(events) == device).select(*names) for events in trace.iter_events(within, kinds)
    ]
    none = np.zeros(0, np.int64)
    return [np.concatenate([none, *(part[name].astype(np.int64) for part in parts)]) for name in names]


def _highest_reserved(trace: RecordedTrace, within: Range, device: str) -> Peak:
    seqs, kinds, _, sizes = _events_of(trace, within, tuple(_SEGMENTS), device)
    signs = np.array([_SEGMENTS.get(kind, 0) for kind in KINDS], np.int64)
    level = np.cumsum(signs[kinds] * sizes)
    looked_at = {within.first - 1}
    if len(level):
        looked_at.add(int(seqs[int(level.argmax())]))
    return _highest(trace, {seq: int(trace.replay.segments(seq + 1, device)["total_bytes"].sum()) for seq in looked_at})


def _allocated(trace: RecordedTrace, seq: int, device: str) -> int:
    blocks = trace.replay.blocks(seq + 1, device)
    return int(blocks["block_bytes"][blocks["state"] == ALLOCATED].sum())


def _highest(trace: RecordedTrace, levels: dict[int, int]) -> Peak:
    """The first event with the most bytes."""
    seq = min(levels, key=lambda seq: (-levels[seq], seq))
    return Peak(levels[seq], seq, trace.time_ns(seq))
