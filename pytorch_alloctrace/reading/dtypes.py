"""Tables without rows: their columns have the dtypes that they have where there are rows."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from .roles import ROLE

TEXT = pd.Series([""]).dtype
"""What pandas makes of text: a dtype of its own since pandas 3, object before."""

BLOCK_STATES = pd.CategoricalDtype(["inactive", "active_allocated", "active_pending_free"])

_NOT_INT64: dict[str, Any] = {
    **dict.fromkeys(("device", "segment_type", "node_type", "name", "kind", "uuid", "pci_address"), TEXT),
    **dict.fromkeys(("site", "filename", "function"), TEXT),
    # Addresses need all 64 bits. Everything else is signed, because unsigned integers wrap where they are subtracted.
    **dict.fromkeys(("address", "segment"), np.uint64),
    **dict.fromkeys(("backward", "user", "is_expandable", "older", "role_is_exact"), np.bool_),
    **dict.fromkeys(("source", "segment_pool_id"), object),
    "state": BLOCK_STATES,
    "role": ROLE,
    "share": np.float64,
    "external_fragmentation": "Float64",
}
"""By the name of a column, which means the same in all tables."""


def no_rows(columns: Iterable[str], **dtypes: Any) -> pd.DataFrame:
    """A table with these columns and without rows. dtypes: of columns that have another one in this table."""
    return _no_rows(tuple(columns), tuple(dtypes.items())).copy()


@functools.cache
def _no_rows(columns: tuple[str, ...], dtypes: tuple[tuple[str, Any], ...]) -> pd.DataFrame:
    chosen = {name: dict(dtypes).get(name, _NOT_INT64.get(name, np.int64)) for name in columns}
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in chosen.items()})
