"""What the driver and the operating system said of memory while a trace was recorded, beside what torch reserved."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .integers import int64, with_int64
from .kinds import device_name

COLUMNS = ("seq", "time_ns", "device", "used", "total", "by_this_process", "by_others", "reserved", "outside")
_BYTES = COLUMNS[3:-1]
_NOT_TOLD = (1 << 64) - 1
_LARGEST = (1 << 62) - 1


def driver_memory(samples: dict[str, npt.NDArray[Any]]) -> pd.DataFrame:
    """A row for each change: see `Trace.driver_memory`. samples: as the replay has taken them, by column."""
    table = pd.DataFrame(samples)
    pairs = zip(table.pop("device_type"), table.pop("device_index"), strict=True)
    table.insert(2, "device", pd.Series([device_name(kind, index) for kind, index in pairs], dtype=object))
    for name in _BYTES:
        told = table[name] != _NOT_TOLD
        table[name] = signed(table[name]).where(told)
    # Of the machine no sum is told, and all that is resident is this process's.
    is_cpu = table["device"] == "cpu"
    table.loc[is_cpu, "by_this_process"] = table.loc[is_cpu, "used"]
    table.loc[is_cpu, "by_others"] = pd.NA
    table["outside"] = table["used"] - table["reserved"]
    return with_int64(table[list(COLUMNS)])


def signed(values: pd.Series[Any]) -> pd.Series[Any]:
    """Unsigned 64-bit numbers as nullable signed ones, since what follows subtracts; a damaged trace may hold any."""
    return pd.Series(np.minimum(int64(values.to_numpy()), _LARGEST), index=values.index).astype("Int64")


def outside_at(samples: pd.DataFrame, timeline: pd.DataFrame, moments: npt.NDArray[np.int64]) -> pd.Series[Any]:
    """For each row of a timeline: `outside` of the driver's last sample before `moments` (ns, one a row); else <NA>."""
    outside = pd.Series(pd.NA, index=timeline.index, dtype="Int64")
    for device, rows in timeline.groupby("device", sort=False).groups.items():
        of_device = samples[samples["device"] == device]
        if of_device.empty:
            continue
        # Not the sample's used bytes without what is reserved now: segments come and go between two samples.
        last = np.searchsorted(of_device["time_ns"].to_numpy(), moments[rows], side="right") - 1
        values = of_device["outside"].take(np.maximum(last, 0)).set_axis(rows)
        outside.loc[rows] = values.where(last >= 0)
    return outside
