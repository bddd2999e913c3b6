"""What the driver and the operating system reported of memory while a trace was recorded, next to what torch
reserved."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .dtypes import TEXT
from .kinds import device_name

COLUMNS = ("seq", "time_ns", "device", "used", "total", "by_this_process", "by_others", "reserved", "outside")
_BYTES = COLUMNS[3:-1]


def driver_memory(samples: dict[str, npt.NDArray[Any]]) -> pd.DataFrame:
    """A row for each change: see `Trace.driver_memory`. samples: by column, as the replay took them (-1: unknown)."""
    table = pd.DataFrame(samples)
    pairs = zip(table.pop("device_type"), table.pop("device_index"), strict=True)
    table.insert(2, "device", pd.Series([device_name(kind, index) for kind, index in pairs], dtype=TEXT))
    for name in _BYTES:
        table[name] = table[name].astype("Int64").where(table[name] >= 0)
    # For the machine no sum of other processes is known, and all that is resident belongs to this process.
    is_cpu = table["device"] == "cpu"
    table.loc[is_cpu, "by_this_process"] = table.loc[is_cpu, "used"]
    table.loc[is_cpu, "by_others"] = pd.NA
    table["outside"] = table["used"] - table["reserved"]
    return table[list(COLUMNS)]


def outside_at(samples: pd.DataFrame, timeline: pd.DataFrame, times: npt.NDArray[np.int64]) -> pd.Series[Any]:
    """For each row of a timeline: `outside` of the driver's last sample before `times` (ns, one per row); else <NA>."""
    outside = pd.Series(pd.NA, index=timeline.index, dtype="Int64")
    for device, rows in timeline.groupby("device", sort=False).groups.items():
        of_device = samples[samples["device"] == device]
        if of_device.empty:
            continue
        # Not the sample's used bytes without what is reserved now: segments come and go between two samples.
        last = np.searchsorted(of_device["time_ns"].to_numpy(), times[rows], side="right") - 1
        values = of_device["outside"].take(np.maximum(last, 0)).set_axis(rows)
        outside.loc[rows] = values.where(last >= 0)
    return outside
