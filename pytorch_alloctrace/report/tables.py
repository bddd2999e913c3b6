"""Rows of tables as plain values."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, cast

from ..reading.sites import Site
from ..reading.table import Table, names_of

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""First characters of cells that spreadsheets evaluate: =+-@, tab, line breaks, and full-width =+-@."""


def rows(table: Table | pd.DataFrame) -> list[dict[str, Any]]:
    return table.rows() if isinstance(table, Table) else cast(list[dict[str, Any]], table.to_dict("records"))


def records(table: Table | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON values, with None for missing values."""
    if not isinstance(table, Table):
        return cast(list[dict[str, Any]], json.loads(table.to_json(orient="records")))
    columns = {name: names_of(name, column).tolist() for name, column in table.columns.items()}
    row_dicts = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [
        {name: None if isinstance(cell, float) and not math.isfinite(cell) else cell for name, cell in row.items()}
        for row in row_dicts
    ]


def csv_text(table: Table | pd.DataFrame) -> str:
    """Return the table as CSV. Text that a spreadsheet would evaluate gets a leading apostrophe; numbers do not."""
    import pandas as pd

    frame = table.to_frame() if isinstance(table, Table) else table
    escaped_columns = {
        name: pd.Series([_escape_formula(cell) for cell in column], column.index, dtype=object)
        for name, column in frame.items()
        if not pd.api.types.is_numeric_dtype(column.dtype)
    }
    return frame.assign(**cast(dict[str, Any], escaped_columns)).to_csv(index=False)


def _escape_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def text_of(value: Any) -> str | None:
    """Return the text of a cell, or None for NaN."""
    return value if isinstance(value, str) else None


def by_word(by: str) -> str:
    """Return the noun for a row: "module" for "module:3"."""
    return by.partition(":")[0]


def site_of(row: dict[str, Any]) -> Site:
    return Site(row["filename"], int(row["line"]), row["function"], text_of(row["source"]), bool(row["user"]))
