"""Memory over time: the sums of a device's memory in equal intervals, and the samples of the driver.

csrc/core/replay measures 60,000 intervals in one pass. Every timeline is made of these intervals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .names import device_name
from .replay import Replay, external_fragmentation
from .table import Table, texts

MEASURED = 60_000
"""Number of intervals that the replay measures."""
POINTS = 6000
"""Number of intervals of a curve over the complete run."""
_SAMPLED = ("used_bytes", "total_bytes", "this_process_bytes", "other_processes_bytes", "reserved_bytes")


def driver_samples(columns: dict[str, npt.NDArray[Any]]) -> Table:
    """Return one row per change (`Trace.driver_memory`) of the replay's samples, in bytes; -1 means unknown."""
    pairs = zip(columns["device_type"].tolist(), columns["device_index"].tolist(), strict=True)
    devices = texts(device_name(kind, index) for kind, index in pairs)
    table = {name: np.ma.array(columns[name], mask=columns[name] < 0) for name in _SAMPLED}
    # CPU and pinned memory: the bytes are those of this process, and those of other processes are unknown. The samples
    # of the CPU have the anonymous bytes in place of this process's; older recorders wrote 0.
    is_cpu, is_pinned = devices == "cpu", devices == "pinned"
    is_host = is_cpu | is_pinned
    anonymous = table["this_process_bytes"].copy()
    anonymous[~is_cpu | (columns["this_process_bytes"] <= 0)] = np.ma.masked
    table["this_process_bytes"][is_host] = table["used_bytes"][is_host]
    table["other_processes_bytes"][is_host] = np.ma.masked
    table["total_bytes"][is_pinned] = np.ma.masked
    table["outside_bytes"] = table["used_bytes"] - table["reserved_bytes"]
    table["anonymous_bytes"] = anonymous
    return Table({"seq": columns["seq"], "time_ns": columns["time_ns"], "device": devices, **table})


def intervals(begin_ns: int, end_ns: int, points: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the borders of `points` equal intervals: times in ns, and indices of the finest borders.

    The finest borders divide the run into `MEASURED` intervals, or into `points` if that is more.
    """
    if points < 1:
        raise ValueError(f"points={points}: a timeline has at least one point")
    finest = max(points, MEASURED)
    ends = np.linspace(0, finest, points + 1).round().astype(np.int64)
    # Durations, not times since 1970: a double resolves these to 256 ns only.
    times = np.linspace(0, max(end_ns - begin_ns, 1), finest + 1).astype(np.int64)
    return begin_ns + times[ends], ends


def device_timeline(
    replay: Replay, samples: Table, device: str, borders: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Table:
    """Return `Trace.timeline` of one device. `borders` (ns) and `ends` (indices) are from `intervals`."""
    first, until = ends[:-1] * MEASURED // ends[-1], -(-ends[1:] * MEASURED // ends[-1])
    measured = replay.timeline(first, until, device)
    cached = measured["reserved_bytes"] - measured["active_bytes"]
    columns = {"time_ns": borders[:-1][: len(measured)], **measured.columns}
    blocks, seq = columns.pop("blocks"), columns.pop("seq")
    columns["external_fragmentation"] = external_fragmentation(measured["largest_free_bytes"], cached)
    # The outside bytes of the sample, not its used bytes - reserved bytes now: segments change between two samples.
    latest = np.searchsorted(samples["time_ns"], borders[1:][: len(measured)], side="right") - 1
    outside = samples["outside_bytes"]
    if len(samples):
        missing = np.ma.getmaskarray(outside)[np.maximum(latest, 0)] | (latest < 0)
        columns["outside_bytes"] = np.ma.array(outside.data[np.maximum(latest, 0)], mask=missing)
    else:
        columns["outside_bytes"] = np.ma.array(np.zeros(len(latest), np.int64), mask=np.ones(len(latest), np.bool_))
    return Table({**columns, "blocks": blocks, "seq": seq})


def in_range(table: Any, since_ns: int | None, until_ns: int | None) -> npt.NDArray[np.bool_]:
    """Return a mask of the intervals of a timeline that overlap a range; None: no limit."""
    begins = np.asarray(table["time_ns"], np.int64)
    borders = np.append(np.unique(begins), np.iinfo(np.int64).max)
    ends = borders[np.searchsorted(borders, begins, side="right")]
    is_inside = np.ones(len(begins), dtype=bool)
    if since_ns is not None:
        is_inside &= ends > since_ns
    if until_ns is not None:
        is_inside &= begins <= until_ns
    return is_inside
