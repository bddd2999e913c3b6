"""The sums of each device over time, and what is drawn with them: steps, marks, regions, segments, refused requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ...reading.opened import POINTS
from ...reading.recorded import RecordedTrace
from ...reading.replay import MEASURES
from .bounds import Bounds
from .columns import Columns


def packed_curves(trace: RecordedTrace, devices: Sequence[str], bounds: Bounds, columns: Columns) -> dict[str, Any]:
    """The timeline of each of these devices, in intervals of equal length: each measure at their end, and how much
    higher and lower it was within them, so that no peak is lost."""
    made: dict[str, Any] = {"points": POINTS, "devices": {}}
    for device in devices:
        rows = trace.timeline(POINTS, device=device)
        measures = {}
        for name in MEASURES:
            if rows[name].isna().all():
                continue
            at_end, least, most = rows[name], rows[f"{name}_min"], rows[f"{name}_max"]
            measures[name] = {
                "last": columns.add(at_end),
                "above": columns.add(most - at_end, differences=False),
                "below": columns.add(at_end - least, differences=False),
            }
        made["devices"][device] = {
            "measures": measures,
            "outside": None if rows["outside"].isna().all() else columns.add(rows["outside"]),
            "blocks": columns.add(rows["blocks"]),
            "segment_events": _segment_events(trace, device, bounds, columns),
            "capacity": capacity(trace, device),
        }
    return made


def capacity(trace: RecordedTrace, device: str) -> int | None:
    """The bytes of a device; None if unknown."""
    found = trace.hardware.set_index("device")["bytes"].get(device)
    if found is None:
        samples = trace.driver_memory(device=device)
        found = samples["total"].max() if len(samples) else None
    return None if found is None or pd.isna(found) else int(found)


def _segment_events(trace: RecordedTrace, device: str, bounds: Bounds, columns: Columns) -> dict[str, Any]:
    """When segments were taken from the driver and returned; of very many the largest."""
    kinds = ["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
    counts = trace.kind_counts
    known = [kind for kind in kinds if counts.get(kind)]
    found = trace.events(kinds=known, columns=["time_ns", "kind", "device", "nbytes"])
    found = found[found["device"] == device]
    left_out = max(len(found) - bounds.segment_events, 0)
    if left_out:
        found = found.nlargest(bounds.segment_events, "nbytes").sort_values("time_ns")
    is_taken = found["kind"].isin(["segment_alloc", "segment_map"]).to_numpy(bool)
    signed = np.where(is_taken, 1, -1) * found["nbytes"].to_numpy(np.int64)
    return {
        "time": columns.add(found["time_ns"].to_numpy(np.int64) - trace.begin_ns),
        "bytes": columns.add(signed, differences=False),
        "left_out": left_out,
    }


def packed_positions(trace: RecordedTrace, bounds: Bounds, columns: Columns) -> dict[str, Any]:
    """The steps, marks and regions. Times since the recording began."""
    steps = trace.steps()
    marks = trace.marks()
    marks = marks[marks["kind"] == "mark"]
    regions = list(trace.positions.regions)
    begin = trace.begin_ns
    return {
        "steps": {
            "number": columns.add(steps["step"]),
            "seq": columns.add(steps["seq"]),
            "time": columns.add(steps["time_ns"].to_numpy(np.int64) - begin),
        },
        "marks": [
            [str(name), int(seq), int(time_ns) - begin]
            for name, seq, time_ns in zip(marks["name"], marks["seq"], marks["time_ns"], strict=True)
        ][: bounds.marks],
        "regions": [
            [region.name, region.begin_ns - begin, (trace.end_ns if region.end_ns is None else region.end_ns) - begin]
            for region in regions[: bounds.marks]
        ],
        "marks_left_out": max(len(marks) - bounds.marks, 0) + max(len(regions) - bounds.marks, 0),
    }
