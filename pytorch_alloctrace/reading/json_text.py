"""What a trace has as JSON: its header, its end, settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_DEEPEST = 32


def json_object(text: str) -> dict[str, Any]:
    """What a part of a trace says of itself; empty where damage made it something else, or where it is nested deeper
    than a recorder does: whatever goes through it later would end in a RecursionError."""
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
