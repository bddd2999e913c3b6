"""The table of `Trace.timeline`: the sums of each device's memory over time, which csrc/core/replay computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .driver import outside_at
from .replay import external_fragmentation


def make_timeline(table: pd.DataFrame, borders: Any, driver: pd.DataFrame) -> pd.DataFrame:
    """See `Trace.timeline`. table: the measures, for each device len(borders) - 1 rows; it is completed in place.
    borders: of the intervals, in ns; driver: as `Trace.driver_memory` gives it."""
    repeats = len(table) // (len(borders) - 1)
    table.insert(1, "time_ns", np.tile(borders[:-1], repeats))
    cached = table["reserved"] - table["active"]
    pieces = external_fragmentation(table["largest_free"], cached)
    table.insert(len(table.columns) - 2, "external_fragmentation", pieces)
    table.insert(len(table.columns) - 2, "outside", outside_at(driver, table, np.tile(borders[1:], repeats)))
    return table


def intervals_of_range(table: pd.DataFrame, since_ns: int | None, until_ns: int | None) -> pd.DataFrame:
    """The intervals of a timeline that lie in a range or reach into it; since_ns, until_ns: None is no limit."""
    begins = table["time_ns"].to_numpy(np.int64)
    borders = np.append(np.unique(begins), np.iinfo(np.int64).max)
    ends = borders[np.searchsorted(borders, begins, side="right")]
    kept = np.ones(len(table), dtype=bool)
    if since_ns is not None:
        kept &= ends > since_ns
    if until_ns is not None:
        kept &= begins <= until_ns
    return table[kept].reset_index(drop=True)
