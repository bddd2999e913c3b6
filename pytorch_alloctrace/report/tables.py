"""The rows of tables, as plain values."""

from __future__ import annotations

import json
from typing import Any, cast

import pandas as pd

from ..reading.sites import Site


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows, by column."""
    return cast(list[dict[str, Any]], table.to_dict("records"))


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON has them: null for what is missing."""
    return cast(list[dict[str, Any]], json.loads(table.to_json(orient="records")))


def text_of(value: Any) -> str | None:
    """A cell of a column of text, which has NaN instead of None."""
    return value if isinstance(value, str) else None


def by_word(by: str) -> str:
    """What a row is, in a word: of "module:3" it is "module"."""
    return by.partition(":")[0]


def site_of(row: dict[str, Any]) -> Site:
    """The site of a row that has the columns of one."""
    return Site(row["filename"], int(row["line"]), row["function"], text_of(row["source"]), bool(row["user"]))
