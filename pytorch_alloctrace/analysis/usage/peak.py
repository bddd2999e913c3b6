"""The peak of a device, of the whole run or within a range, and what the memory consisted of then."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...errors import PositionError
from ...reading.frees import were_not_requested
from ...reading.opened import POINTS
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.replay import Peak
from .composition import composition_of
from .tree import Tree, tree_of

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
    def requested(self) -> int:
        """Live then, in the sizes that the program requested: the sum of `composition`."""
        return int(self._live["nbytes"].sum())

    @functools.cached_property
    def reserved(self) -> int | None:
        """Held from the driver then; None if the allocator reports no segments."""
        segments = self._trace.segments(self.seq, device=self.device)
        return int(segments["total_size"].sum()) if len(segments) else None

    @functools.cached_property
    def composition(self) -> pd.DataFrame:
        """`Trace.composition` by line, then."""
        return composition_of(self._trace, self._live, "line", self.seq + 1)

    @functools.cached_property
    def roles(self) -> pd.DataFrame:
        """The same by role."""
        return composition_of(self._trace, self._live, "role", self.seq + 1)

    @functools.cached_property
    def phases(self) -> pd.DataFrame:
        """The same by phase."""
        return composition_of(self._trace, self._live, "phase", self.seq + 1)

    @functools.cached_property
    def ages(self) -> pd.DataFrame:
        """The same by age."""
        return composition_of(self._trace, self._live, "age", self.seq + 1)

    @functools.cached_property
    def tree(self) -> Tree:
        """`Trace.tree`, then."""
        return tree_of(self._trace, self._live)

    @functools.cached_property
    def _live(self) -> pd.DataFrame:
        return self._trace.live(self.seq, device=self.device)


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
    table = trace.timeline(POINTS, device=device)
    events, sizes = table["seq"].to_numpy(np.int64), table["allocated_max"].to_numpy(np.int64)
    is_inside = within.has(events)
    looked_at = {within.first - 1}
    if is_inside.any():
        looked_at.add(int(events[is_inside][sizes[is_inside].argmax()]))
    times = np.append(table["time_ns"].to_numpy(np.int64), trace.end_ns)
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
    kinds = ("alloc", "free_requested", "free_completed")
    events = trace.events(
        since=begin - 1,
        until=min(end, within.end) - 1,
        columns=("seq", "kind", "device", "address", "nbytes"),
        kinds=kinds,
    )
    events = events[events["device"] == device]
    # A block is counted until its free is requested.
    events = events[(events["kind"] != "free_completed") | were_not_requested(trace, events)]
    is_alloc = (events["kind"] == "alloc").to_numpy(bool)
    level = np.cumsum(np.where(is_alloc, 1, -1) * events["nbytes"].to_numpy(np.int64))
    tops = np.flatnonzero(is_alloc & ~np.append(is_alloc[1:], False))
    highest = tops[np.argsort(-level[tops], kind="stable")[:_LOOKED_AT]]
    return [int(seq) for seq in events["seq"].to_numpy(np.int64)[highest]]


def _highest_reserved(trace: RecordedTrace, within: Range, device: str) -> Peak:
    columns = ("seq", "kind", "device", "nbytes")
    events = trace.events(since=within.since, until=within.until, columns=columns, kinds=tuple(_SEGMENTS))
    events = events[events["device"] == device]
    level = np.cumsum(
        events["kind"].astype(str).map(_SEGMENTS).to_numpy(np.int64) * events["nbytes"].to_numpy(np.int64)
    )
    looked_at = {within.first - 1}
    if len(level):
        looked_at.add(int(events["seq"].iloc[int(level.argmax())]))
    return _highest(trace, {seq: int(trace.segments(seq, device=device)["total_size"].sum()) for seq in looked_at})


def _allocated(trace: RecordedTrace, seq: int, device: str) -> int:
    blocks = trace.replay.blocks(seq + 1, device)
    return int(blocks.loc[blocks["state"] == "active_allocated", "nbytes"].sum())


def _highest(trace: RecordedTrace, levels: dict[int, int]) -> Peak:
    """The first event with the most bytes."""
    seq = min(levels, key=lambda seq: (-levels[seq], seq))
    return Peak(levels[seq], seq, trace.time_ns(seq))
