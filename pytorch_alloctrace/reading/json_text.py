"""JSON objects of a trace: header, end, allocator settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_MAX_DEPTH = 32


def json_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Return {} for other text, and for nesting that would raise RecursionError in later code."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in _children(node)]
    return value if isinstance(value, dict) and not level else {}


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
