"""Tables as numpy columns: what analyses work on. DataFrames are made of them at the public surface alone."""

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
"""The states of a block by number, in torch's words."""

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
        """Return some of the rows. rows: their numbers in the wanted order, a mask, or a slice."""
        return Table({name: column[rows] for name, column in self.columns.items()})

    def head(self, count: int) -> Table:
        """Return the first rows."""
        return self.take(slice(max(count, 0)))

    def select(self, *names: str) -> Table:
        """Return these columns, in this order."""
        return Table({name: self.columns[name] for name in names})

    def assign(self, **columns: Column) -> Table:
        """Return the table with these columns added or replaced."""
        return Table({**self.columns, **columns})

    def rows(self) -> list[dict[str, Any]]:
        """Return each row as a dict of plain values; None is a missing one."""
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
    """Return texts, or any other objects, as a column."""
    values = [*values]
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


_OBJECTS = frozenset({"source", "segment_pool_id", "pool", "sites"})
"""Columns of objects that are not text."""
_CATEGORIES = {"state": BLOCK_STATES, "role": ROLES}
"""Columns of numbers that stand for names."""


def names_of(name: str, column: Column) -> Column:
    """Return a column with the names that its numbers stand for, if it is one of states or roles."""
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
        # Text has a type of its own since pandas 3, which infers that type for a column of source lines, too.
        return pd.Series(column, dtype=object if name in _OBJECTS else pd.Series([""]).dtype)
    return column
