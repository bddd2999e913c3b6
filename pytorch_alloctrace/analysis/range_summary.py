"""Summary of the memory in a range of a trace, such as a notebook cell, as plain values."""

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
    peak: LiveMemory
    """Peak in the range, including its initial state."""
    changes: pd.DataFrame
    """`Trace.diff` from the begin to the end of the range."""


@dataclass(frozen=True, eq=False)
class RangeSummary:
    trace: str
    working_directory: str
    """Empty if the trace header is corrupt."""
    begin_ns: int
    """Begin of the recording, in nanoseconds since 1970-01-01 UTC."""
    seconds: float
    events: int
    steps: int
    integrity: Integrity
    """Integrity of the whole trace."""
    leaks: Summary | None
    """Summary of the leaks in the range; None if it contains no complete step."""
    refused: tuple[OutOfMemory, ...]
    """The last failed allocation in the range, if there is one."""
    devices: tuple[DeviceRange, ...]
    """Devices that allocated or freed in the range, highest peak first."""
    advisor: Advisor


def summarize_range(trace: RecordedTrace, within: Range) -> RangeSummary:
    """Summarize a range, which takes as long as to summarize the whole trace."""
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
            continue  # no block was live
        devices.append(DeviceRange(peak, difference(trace, within.since, within.until, device=device)))
    return RangeSummary(
        trace=trace.path,
        working_directory=trace.working_directory,
        begin_ns=trace.begin_ns,
        seconds=(trace.time_ns(within.until) - trace.time_ns(within.since)) / 1e9,
        events=int(counts.total()),
        steps=int(within.has(trace.positions.step_ends).sum()),
        integrity=trace.integrity,
        leaks=_summarize_leaks(trace, within),
        refused=tuple(find_ooms(trace, within=within, last=1)),
        devices=tuple(sorted(devices, key=lambda device_range: -device_range.peak.requested_bytes)),
        advisor=Advisor(trace),
    )


def _summarize_leaks(trace: RecordedTrace, within: Range) -> Summary | None:
    try:
        return summarize(trace, of_leaks=True, within=within)
    except PositionError:
        return None
