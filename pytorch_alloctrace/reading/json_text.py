"""The JSON objects of a trace: header, end, allocator settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_DEEPEST = 32


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Return an empty one for other text, or for text nested deeper than a recorder nests:
    code that walks it later would raise a RecursionError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    level = [value]
    for _ in range(_DEEPEST):
        level = [part for one in level for part in _parts(one)]
    return value if isinstance(value, dict) and not level else {}


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
