"""Integer columns: signed, because subtracting unsigned ones wraps. Addresses alone stay unsigned."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

ADDRESSES = ("address", "segment")
"""Columns of addresses."""


def int64(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Integers as int64; what only a damaged trace can hold is the largest one."""
    if values.dtype != np.uint64:
        return values.astype(np.int64, copy=False)
    signed = values.view(np.int64)
    return np.where(signed < 0, np.iinfo(np.int64).max, signed) if signed.min(initial=0) < 0 else signed


def with_int64(table: pd.DataFrame, unsigned: Collection[str] = ADDRESSES) -> pd.DataFrame:
    """The table with its integer columns as int64, except those named and nullable ones."""
    numbers = [name for name, kind in table.dtypes.items() if isinstance(kind, np.dtype) and kind.kind in "ui"]
    return table.assign(**{str(name): int64(table[name].to_numpy()) for name in numbers if name not in unsigned})
