"""What the driver and the operating system said of memory while a trace was recorded, beside what torch reserved."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

EVENT_COLUMNS = ("seq", "time_ns", "kind", "device", "address", "size", "autograd_seq", "node_seq")
"""The columns of events that `driver_memory` needs."""
COLUMNS = ("seq", "time_ns", "device", "used", "total", "by_this_process", "by_others", "reserved", "outside")

_NOT_TOLD = (1 << 64) - 1
_SIGNS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_KINDS = frozenset(_SIGNS) | {"memory", "config", "allocator_state", "state_segment"}


class _Reserved:
    """Bytes of the segments that torch holds on one device."""

    def __init__(self) -> None:
        self.bytes = 0
        self.is_told = False  # only the caching allocator tells its segments, and it always tells its settings first
        self.had_before: int | None = None  # in a recording that began in mid-run; None until something is known
        self._in_first_state = False

    def apply(self, kind: str, size: int) -> None:
        if kind == "allocator_state":
            self._in_first_state = self.had_before is None
            self.had_before = self.had_before or 0
            self.is_told = True
        elif kind == "state_segment":
            if self._in_first_state:
                self.bytes += size
                self.had_before = self.bytes
        elif kind == "config":
            self.is_told = True
        else:
            self.had_before = self.had_before or 0
            self._in_first_state = False
            self.bytes += _SIGNS[kind] * size


def driver_memory(frames: Iterator[pd.DataFrame]) -> pd.DataFrame:
    """One row each time that something had changed: see `Trace.driver_memory`. frames: of `Trace.iter_events`."""
    rows: list[tuple[object, ...]] = []
    held: list[tuple[str, int | None]] = []
    reserved: defaultdict[str, _Reserved] = defaultdict(_Reserved)
    for frame in frames:
        wanted = frame[frame["kind"].isin(_KINDS)]
        columns = [wanted[name].tolist() for name in EVENT_COLUMNS]
        for row in zip(*columns, strict=True):
            kind, device, size = str(row[2]), str(row[3]), int(row[5])
            account = reserved[device]
            if kind == "memory":
                rows.append(_sample(row))
                held.append((device, None if account.had_before is None else account.bytes))
            else:
                account.apply(kind, size)
    table = pd.DataFrame(rows, columns=list(COLUMNS[:-2]))
    # Samples before the first event of a device: there was nothing yet, unless the recording began in mid-run.
    table["reserved"] = [
        (0 if size is None and not reserved[device].had_before else size) if reserved[device].is_told else None
        for device, size in held
    ]
    table = table.astype({"seq": np.uint64, "time_ns": np.int64} | dict.fromkeys(COLUMNS[3:-1], "Int64"))
    table["outside"] = table["used"] - table["reserved"]
    return table


def _sample(row: tuple[object, ...]) -> tuple[object, ...]:
    seq, time_ns, _, device, used, total, by_this_process, by_others = row
    if device == "cpu":  # of the machine no sum is told, and all that is resident is this process's
        by_this_process, by_others = used, _NOT_TOLD
    told = [None if value == _NOT_TOLD else value for value in (by_this_process, by_others)]
    return (seq, time_ns, str(device), used, total, *told)


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
