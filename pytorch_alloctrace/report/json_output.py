"""JSON of the commands: one encoder for dataclasses and tables, and what every output has in common.

Every output is one object. It begins with `format` ("pytorch_alloctrace.leaks") and `format_version`; later versions of
this package may add fields, but neither change nor remove any, as long as the version stays the same. A table has its
rows in `rows`, a list of objects. docs/json.md describes the fields of each format.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..reading.table import Table
from .site_names import Frames, with_frames
from .tables import records

FORMAT_VERSION = 1


def plain(value: Any) -> Any:
    """Return a value as dicts, lists, texts, numbers, booleans and None: dataclasses by field, tables and DataFrames by
    row. NaN and infinity, which JSON does not have, become None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Table) or hasattr(value, "to_json"):
        return records(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def document(name: str, data: Any, frames: Frames | None = None, *, indent: int | None = 1) -> str:
    """Return the JSON of one command, ASCII only, with a line break at its end.

    Args:
        name: The format, such as "leaks".
        data: A mapping or a dataclass, whose fields the object gets; or a list or table, whose rows it gets.
        frames: If whole stacks are to be shown: whatever has a `stack_id` gets its `frames`.
        indent: As of `json.dumps`.
    """
    content = plain(data)
    fields = content if isinstance(content, dict) else {"rows": content}
    whole = {"format": f"pytorch_alloctrace.{name}", "format_version": FORMAT_VERSION, **with_frames(fields, frames)}
    return json.dumps(whole, indent=indent, allow_nan=False) + "\n"
