"""The regions that a program named, as a table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...errors import PositionError
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from .peak import peak_between


def region_table(trace: RecordedTrace, *, peaks: bool = False, device: str | None = None) -> pd.DataFrame:
    """See `Trace.regions`."""
    regions = trace.positions.regions
    table = pd.DataFrame(
        {
            "name": pd.Series([region.name for region in regions], dtype=object),
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
        ranges = [trace.range_of(region) for region in regions]
        device = device or next(iter(trace.devices), None)
        table["peak_bytes"] = pd.Series([_peak(trace, within, device) for within in ranges], dtype="Int64")
    return table


def _peak(trace: RecordedTrace, within: Range, device: str | None) -> int | None:
    try:
        return peak_between(trace, within, "allocated", device=device).bytes
    except PositionError:
        return None
