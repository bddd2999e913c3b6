"""Export to the JSON of chrome://tracing; times are microseconds since the recording began.

Memory is counters, steps and regions are slices, marks and failed allocations are instants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...reading.names import MARK
from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace
from ...reading.replay import MEASURES
from ...reading.timeline import POINTS, in_range

_COUNTERS = (*MEASURES[:4], "stranded_bytes", "releasable_bytes")
_PROCESS_ID, _STEPS_THREAD, _REGIONS_THREAD = 1, 1, 2


def perfetto(trace: RecordedTrace, since: Position | None, until: Position | None, device: str | None) -> bytes:
    """Return the JSON. A counter has the maximum, then the last value of each interval: no peak is lost."""
    since_ns = None if since is None else trace.time_ns(since, device=device)
    until_ns = None if until is None else trace.time_ns(until, device=device)
    events = [*_name_events(trace), *_counters(trace, since_ns, until_ns, device), *_slices(trace), *_instants(trace)]
    begin = 0.0 if since_ns is None else _microseconds(trace, since_ns)
    end = float("inf") if until_ns is None else _microseconds(trace, until_ns)
    selected = [event for event in events if event["ph"] == "M" or _overlaps(event, begin, end)]
    return json.dumps({"traceEvents": selected, "displayTimeUnit": "ms"}).encode()


def _overlaps(event: dict[str, Any], begin: float, end: float) -> bool:
    return bool(event["ts"] + event.get("dur", 0) >= begin and event["ts"] <= end)


def _microseconds(trace: RecordedTrace, time_ns: int) -> float:
    return (time_ns - trace.begin_ns) / 1000


def _name_events(trace: RecordedTrace) -> Iterator[dict[str, Any]]:
    program = str(trace.header.get("program") or trace.path)
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS_ID, "args": {"name": program}}
    for thread, name in ((_STEPS_THREAD, "steps"), (_REGIONS_THREAD, "regions and marks")):
        yield {"ph": "M", "name": "thread_name", "pid": _PROCESS_ID, "tid": thread, "args": {"name": name}}


def _counters(
    trace: RecordedTrace, since_ns: int | None, until_ns: int | None, device: str | None
) -> Iterator[dict[str, Any]]:
    interval_us = max(trace.end_ns - trace.begin_ns, 1) / POINTS / 1000
    selected_device = trace.named_device(device)
    for name in [selected_device] if selected_device else trace.replay.devices:
        table = trace.timeline(POINTS, name)
        table = table.take(in_range(table, since_ns, until_ns))
        for measure in _COUNTERS:
            if np.ma.getmaskarray(table[measure]).all():
                continue
            previous, latest_us = None, 0.0
            columns = (table[column].tolist() for column in ("time_ns", measure, f"{measure}_max"))
            for time_ns, last, highest in zip(*columns, strict=True):
                time_us = _microseconds(trace, time_ns)
                for offset, value in ((0.0, highest), (0.999 * interval_us, last)):
                    if value != previous:
                        # Times must not decrease, but borders of intervals are rounded to some hundred nanoseconds.
                        latest_us = max(latest_us, time_us + offset)
                        yield _counter(f"{name} {measure.removesuffix('_bytes')}", latest_us, value)
                    previous = value


def _counter(name: str, time_us: float, value: int) -> dict[str, Any]:
    return {"ph": "C", "name": name, "pid": _PROCESS_ID, "ts": round(time_us, 3), "args": {"bytes": value}}


def _slices(trace: RecordedTrace) -> Iterator[dict[str, Any]]:
    begin = 0.0
    steps = trace.steps()
    for step, time_ns in zip(steps["step"].tolist(), steps["time_ns"].tolist(), strict=True):
        end = _microseconds(trace, time_ns)
        yield _slice(f"step {step}", _STEPS_THREAD, begin, end)
        begin = end
    for region in trace.positions.regions:
        end_ns = trace.end_ns if region.end_ns is None else region.end_ns
        first, last = _microseconds(trace, region.begin_ns), _microseconds(trace, end_ns)
        yield _slice(region.name, _REGIONS_THREAD, first, last)


def _slice(name: str, thread: int, begin: float, end: float) -> dict[str, Any]:
    times = {"ts": round(begin, 3), "dur": round(max(end - begin, 0.0), 3)}
    return {"ph": "X", "name": name, "pid": _PROCESS_ID, "tid": thread, **times}


def _instants(trace: RecordedTrace) -> Iterator[dict[str, Any]]:
    instants = [(name, time_ns) for kind, _, time_ns, name in trace.positions.marks if kind == MARK]
    for failures in trace.iter_events(Range(0, trace.end_seq), ["oom"], with_state=False):
        devices, times = trace.devices_of(failures).tolist(), failures["time_ns"].tolist()
        instants += [(f"out of memory on {device}", time_ns) for device, time_ns in zip(devices, times, strict=True)]
    for name, time_ns in instants:
        time_us = round(_microseconds(trace, time_ns), 3)
        yield {"ph": "i", "s": "p", "name": name, "pid": _PROCESS_ID, "tid": _REGIONS_THREAD, "ts": time_us}
