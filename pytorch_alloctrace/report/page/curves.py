"""Timeline of each device, and the steps, marks, regions and segment events drawn on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...reading.names import KINDS, MARK
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.replay import MEASURES
from ...reading.timeline import POINTS
from ..site_names import SiteNames
from .columns import Columns
from .snapshots import Bounds

_SEGMENT_ALLOCATIONS = ("segment_alloc", "segment_map")


def pack_curves(trace: RecordedTrace, devices: Sequence[str], bounds: Bounds, columns: Columns) -> dict[str, Any]:
    """Return the timeline of each device in POINTS intervals of equal length.

    A measure has its value at the end of each interval, and its minimum and maximum within it.
    """
    data: dict[str, Any] = {"points": POINTS, "devices": {}}
    for device in devices:
        timeline = trace.timeline(POINTS, device)
        outside: Any = timeline["outside_bytes"]
        measures = {}
        for name in MEASURES:
            if np.ma.getmaskarray(timeline[name]).all():
                continue
            measures[name.removesuffix("_bytes")] = {
                "last": columns.add(timeline[name]),
                "least": columns.add(timeline[f"{name}_min"]),
                "most": columns.add(timeline[f"{name}_max"]),
            }
        data["devices"][device] = {
            "measures": measures,
            "outside": None if np.ma.getmaskarray(outside).all() else columns.add(outside),
            "blocks": columns.add(timeline["blocks"]),
            "segment_events": _segment_events(trace, device, bounds, columns),
            "capacity": trace.device_bytes(device),
        }
    return data


def _segment_events(trace: RecordedTrace, device: str, bounds: Bounds, columns: Columns) -> dict[str, Any]:
    """Return times and bytes of segments allocated from the driver (positive) and freed: the largest if too many."""
    counts = trace.kind_counts
    kinds = [kind for kind in (*_SEGMENT_ALLOCATIONS, "segment_free", "segment_unmap") if counts.get(kind)]
    empty = np.zeros(0, np.int64)
    times, signed_sizes = [empty], [empty]
    for events in trace.iter_events(Range(0, trace.end_seq), kinds, with_state=False):
        device_events = events.take(trace.devices_of(events) == device)
        is_allocation = np.isin(device_events["kind"], [KINDS.index(kind) for kind in _SEGMENT_ALLOCATIONS])
        times.append(device_events["time_ns"])
        signed_sizes.append(np.where(is_allocation, 1, -1) * device_events["requested_bytes"])
    time, size = np.concatenate(times), np.concatenate(signed_sizes)
    left_out = max(len(time) - bounds.segment_events, 0)
    if left_out:
        largest = np.sort(np.argsort(-np.abs(size), kind="stable")[: bounds.segment_events])
        time, size = time[largest], size[largest]
    return {
        "time": columns.add(time - trace.begin_ns),
        "bytes": columns.add(size, differences=False),
        "left_out": left_out,
    }


def pack_positions(trace: RecordedTrace, names: SiteNames, bounds: Bounds, columns: Columns) -> dict[str, Any]:
    """Return the steps, marks and regions, with times in nanoseconds since the recording began."""
    steps = trace.steps()
    marks = [(name, seq, time_ns) for kind, seq, time_ns, name in trace.positions.marks if kind == MARK]
    regions = list(trace.positions.regions)
    begin = trace.begin_ns
    return {
        "steps": {
            "number": columns.add(steps["step"]),
            "seq": columns.add(steps["seq"]),
            "time": columns.add(steps["time_ns"] - begin),
        },
        "marks": [[names.mark(name), seq, time_ns - begin] for name, seq, time_ns in marks[: bounds.marks]],
        "regions": [
            [
                names.mark(region.name),
                region.begin_ns - begin,
                (trace.end_ns if region.end_ns is None else region.end_ns) - begin,
            ]
            for region in regions[: bounds.marks]
        ],
        "marks_left_out": max(len(marks) - bounds.marks, 0) + max(len(regions) - bounds.marks, 0),
    }
