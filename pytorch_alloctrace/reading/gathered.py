"""A large table put together of parts: what the parts hold is never there twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd


class Gathered:
    """Parts of one table, in order, with the same columns. rows: the most that there can be; memory is taken for those
    that come."""

    def __init__(self, rows: int) -> None:
        self._most = rows
        self.rows = 0
        self._columns: dict[str, _Column] = {}

    def add(self, part: pd.DataFrame) -> None:
        end = self.rows + len(part)
        for name in part:
            column = self._columns.get(str(name))
            if column is None:
                column = self._columns[str(name)] = _Column(self._most, part[name].array)
            column.put(part[name].array, self.rows, end)
        self.rows = end

    def table(self) -> pd.DataFrame:
        """All rows that were added; at least one part must have been."""
        columns = {name: column.until(self.rows) for name, column in self._columns.items()}
        return pd.DataFrame(columns, copy=False)


class _Column:
    def __init__(self, rows: int, first: Any) -> None:
        self._dtype = first.dtype
        self._categories = first.categories if isinstance(first, pd.Categorical) else None
        # Pages that are not written to take no memory.
        self._values = np.empty(rows, _plain(first)[0].dtype)
        self._missing = np.empty(rows, np.bool_) if isinstance(first, pd.arrays.IntegerArray) else None

    def put(self, part: Any, begin: int, end: int) -> None:
        if self._categories is not None and not self._categories.equals(part.categories):
            # A kind of event that this version does not know came in a later part only.
            self._categories = self._categories.append(part.categories.difference(self._categories, sort=False))
            part = part.set_categories(self._categories)
        values, missing = _plain(part)
        if values.dtype.itemsize > self._values.dtype.itemsize:
            self._values = self._values.astype(values.dtype)
        self._values[begin:end] = values
        if self._missing is not None:
            self._missing[begin:end] = missing

    def until(self, end: int) -> Any:
        values = self._values[:end]
        if self._categories is not None:
            return pd.Categorical.from_codes(values, categories=self._categories)
        if self._missing is not None:
            return pd.arrays.IntegerArray(values, self._missing[:end])
        return pd.array(values, dtype=self._dtype) if values.dtype == object else values


def _plain(part: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """The values of a column as numpy has them, and which are missing, where its kind can say so."""
    if isinstance(part, pd.Categorical):
        return np.asarray(part.codes), None
    if isinstance(part, pd.arrays.IntegerArray):
        missing = np.asarray(part.isna())
        return part.to_numpy(dtype=part.dtype.type, na_value=0), missing
    return np.asarray(part), None
