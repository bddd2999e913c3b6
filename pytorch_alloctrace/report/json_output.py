"""JSON of the commands: an encoder for dataclasses and tables, and the fields common to every output.

Every output is one object that begins with `format` ("pytorch_alloctrace.leaks") and `format_version`. Later versions
of this package may add fields; removing or changing a field raises `format_version`. A table has its rows in `rows`, a
list of objects. docs/json.md describes the fields of each format.
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
    """Return a value as dicts, lists, texts, numbers, booleans and None.

    Dataclasses are encoded by field, tables and DataFrames by row. NaN and infinity become None, which JSON lacks.
    """
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
    """Return the JSON of one command, ASCII only, with a final line break.

    name: the format, such as "leaks". data: a mapping or dataclass with the fields, or a list or table of the rows.
    frames: function that returns the frames of a stack, to add `frames` to each object that has a `stack_id`.
    """
    content = plain(data)
    fields = content if isinstance(content, dict) else {"rows": content}
    output = {"format": f"pytorch_alloctrace.{name}", "format_version": FORMAT_VERSION, **with_frames(fields, frames)}
    return json.dumps(output, indent=indent, allow_nan=False) + "\n"
