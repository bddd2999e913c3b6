"""What happened to the memory in a range of a trace, such as a notebook cell, as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..errors import PositionError
from ..reading.integrity import Integrity
from ..reading.positions import Range
from ..reading.recorded import RecordedTrace
from .advice import Advisor
from .free_memory.oom import OutOfMemory, find_ooms
from .summary import Summary, summarize
from .usage.comparison import difference
from .usage.live_memory import LiveMemory, live_memory


@dataclass(frozen=True, eq=False)
class DeviceRange:
    """One device in the range."""

    peak: LiveMemory
    """The highest in the range; the state that it begins with counts."""
    changes: pd.DataFrame
    """`Trace.diff` from its begin to its end."""


@dataclass(frozen=True, eq=False)
class RangeSummary:
    """A range of a trace."""

    trace: str
    """The path of the trace."""
    working_directory: str
    """Of the program; empty if damage took it."""
    begin_ns: int
    """When the recording began: nanoseconds since 1970-01-01 UTC."""
    seconds: float
    events: int
    steps: int
    integrity: Integrity
    """Of the whole trace."""
    leaks: Summary | None
    """What `summarize` found on leaks in the range; None if no whole step lies in it."""
    refused: tuple[OutOfMemory, ...]
    """The last request that ran out of memory in it, if there is one."""
    devices: tuple[DeviceRange, ...]
    """Those that allocated or freed in it, the highest peak first."""
    advisor: Advisor
    """Which settings would have helped."""


def summarize_range(trace: RecordedTrace, within: Range) -> RangeSummary:
    """Summarizes a range. It costs as much as the whole trace."""
    counts: Counter[str] = Counter()
    for events in trace.iter_events(within, with_state=False):
        counts.update(dict(zip(*np.unique(trace.devices_of(events).astype(str), return_counts=True), strict=True)))
    devices = []
    for device in trace.devices:
        if not counts[device]:
            continue
        try:
            peak = live_memory(trace, "peak", device=device, since=within.since, until=within.until)
        except PositionError:
            continue  # nothing was live
        devices.append(DeviceRange(peak, difference(trace, within.since, within.until, device=device)))
    return RangeSummary(
        trace=trace.path,
        working_directory=trace.working_directory,
        begin_ns=trace.begin_ns,
        seconds=(trace.time_ns(within.until) - trace.time_ns(within.since)) / 1e9,
        events=int(counts.total()),
        steps=int(within.has(trace.positions.step_ends).sum()),
        integrity=trace.integrity,
        leaks=_leaks(trace, within),
        refused=tuple(find_ooms(trace, within=within, last=1)),
        devices=tuple(sorted(devices, key=lambda one: -one.peak.requested_bytes)),
        advisor=Advisor(trace),
    )


def _leaks(trace: RecordedTrace, within: Range) -> Summary | None:
    try:
        return summarize(trace, of_leaks=True, within=within)
    except PositionError:
        return None
