"""Tables of numpy columns for the analyses. Only the public interface converts them into DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .names import ROLES

if TYPE_CHECKING:
    import pandas as pd

INACTIVE, ALLOCATED, PENDING_FREE = range(3)
BLOCK_STATES = ("inactive", "active_allocated", "active_pending_free")
"""Torch's names of block states, by number."""

Column: TypeAlias = npt.NDArray[Any]


class Table:
    """Columns of equal length. A masked array is a column with missing values; text is an array of objects."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self.columns = dict(columns)
        """Arrays by name, in order."""

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        return str(self.to_frame()._repr_html_())  # type: ignore[operator]

    def take(self, rows: Any) -> Table:
        """Return selected rows. rows: row numbers in order, a mask, or a slice."""
        return Table({name: column[rows] for name, column in self.columns.items()})

    def head(self, count: int) -> Table:
        """Return the first `count` rows."""
        return self.take(slice(max(count, 0)))

    def select(self, *names: str) -> Table:
        """Return these columns, in this order."""
        return Table({name: self.columns[name] for name in names})

    def assign(self, **columns: Column) -> Table:
        """Return the table with these columns added or replaced."""
        return Table({**self.columns, **columns})

    def rows(self) -> list[dict[str, Any]]:
        """Return each row as a dict of plain values; None: missing."""
        values = [column.tolist() for column in self.columns.values()]
        return [dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """Return a copy as a DataFrame. Columns with missing values have pandas' nullable types."""
        import pandas as pd

        return pd.DataFrame({name: _series(name, column) for name, column in self.columns.items()}, copy=True)


def sums(groups: npt.NDArray[np.int64], values: Column, count: int) -> npt.NDArray[np.int64]:
    """Return the exact sum of the values of each of `count` groups. groups: the group of each value, from 0."""
    totals = np.zeros(count, np.int64)
    np.add.at(totals, groups, values)
    return totals


def maxima(groups: npt.NDArray[np.int64], values: Column, count: int) -> npt.NDArray[np.int64]:
    """Return the largest value of each of `count` groups; 0 for groups without values above 0."""
    largest = np.zeros(count, np.int64)
    np.maximum.at(largest, groups, values)
    return largest


def texts(values: Any) -> Column:
    """Return a column of objects, such as texts."""
    values = [*values]
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


_OBJECTS = frozenset({"source", "segment_pool_id", "pool", "sites"})
"""Columns of objects that are not text."""
_CATEGORIES = {"state": BLOCK_STATES, "role": ROLES}
"""Names by number, for columns that store numbers."""


def names_of(name: str, column: Column) -> Column:
    """Return a column of states or roles as names; other columns unchanged."""
    if name in _CATEGORIES and column.dtype == np.int8:
        return texts(_CATEGORIES[name])[column]
    return column


def _series(name: str, column: Column) -> Any:
    import pandas as pd

    if isinstance(column, np.ma.MaskedArray):
        missing = np.ma.getmaskarray(column)
        if column.dtype.kind == "f":
            return pd.arrays.FloatingArray(np.where(missing, np.nan, column.data), missing)
        return pd.arrays.IntegerArray(column.data, missing)
    if column.dtype == np.int8 and name in _CATEGORIES:
        return pd.Categorical.from_codes(column, dtype=pd.CategoricalDtype([*_CATEGORIES[name]]))
    if column.dtype == object:
        # pandas 3 would infer its string dtype for source lines, which are objects (text or None).
        return pd.Series(column, dtype=object if name in _OBJECTS else pd.Series([""]).dtype)
    return column
