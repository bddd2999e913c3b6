"""Table of the marks and regions that a program set."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd

from ...errors import PositionError
from ...reading.names import MARK
from ...reading.positions import Range, Region
from ...reading.recorded import RecordedTrace
from .peak import peak_between


def mark_table(trace: RecordedTrace, *, peaks: bool = False, device: str | None = None) -> pd.DataFrame:
    """Implement `Trace.marks`."""
    counts: Counter[str] = Counter()
    marks = []
    for kind, seq, time_ns, name in trace.positions.marks:
        if kind == MARK:
            counts[name] += 1
            marks.append(("mark", Region(name, counts[name], seq, time_ns, seq, time_ns)))
    rows = [*marks, *(("region", region) for region in trace.positions.regions)]
    rows.sort(key=lambda row: row[1].begin_seq)
    regions = [region for _, region in rows]
    table = pd.DataFrame(
        {
            "name": pd.Series([region.name for region in regions], dtype=object),
            "kind": pd.Series([kind for kind, _ in rows], dtype=object),
            "number": pd.Series([region.number for region in regions], dtype="int64"),
            "begin_seq": pd.Series([region.begin_seq for region in regions], dtype="int64"),
            "begin_ns": pd.Series([region.begin_ns for region in regions], dtype="int64"),
            "end_seq": pd.Series([region.end_seq for region in regions], dtype="Int64"),
            "end_ns": pd.Series([region.end_ns for region in regions], dtype="Int64"),
        }
    )
    step = trace.positions.step_of(table["begin_seq"].to_numpy())
    table["step"] = pd.arrays.IntegerArray(step.data, np.ma.getmaskarray(step))
    if peaks:
        device = device or next(iter(trace.devices), None)
        ranges = [None if kind == "mark" else trace.range_of(region) for kind, region in rows]
        table["peak_bytes"] = pd.Series([_peak_bytes(trace, within, device) for within in ranges], dtype="Int64")
    return table


def _peak_bytes(trace: RecordedTrace, within: Range | None, device: str | None) -> int | None:
    try:
        return None if within is None else peak_between(trace, within, "allocated", device=device).bytes
    except PositionError:
        return None
