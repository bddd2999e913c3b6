"""The allocator's settings of a snapshot, as a trace has them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_INTERVALS = 16
"""Of the divisions: requests of 1 MiB, of 2 MiB, ... 32 GiB and more."""
_HIGHEST = 2**64 - 1
_SIZES = ("large_segment_size", "max_split_size", "max_non_split_rounding_size")
_SHARES = ("garbage_collection_threshold",)
_CHOICES = ("expandable_segments", "graph_capture_record_stream_reuse")


def settings_json(known: Mapping[str, Any], has_expandable: bool) -> str:
    """What an event `config` says. known: torch's settings, by name; has_expandable: there are expandable segments, as
    the settings of some releases do not say."""
    said: dict[str, Any] = {"expandable_segments": has_expandable}
    for name in _CHOICES:
        if isinstance(known.get(name), bool):
            said[name] = known[name]
    for name in _SIZES:
        value = known.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            said[name] = min(value, _HIGHEST) if value >= 0 else _HIGHEST  # torch prints the highest as -1
    for name in _SHARES:
        value = known.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            said[name] = float(value)
    said["roundup_power2_divisions"] = _divisions(known.get("roundup_power2_divisions"))
    return json.dumps(said, allow_nan=False)


def _divisions(value: Any) -> list[int]:
    """By interval; torch names each by its beginning in MiB."""
    if isinstance(value, Mapping):
        known = {int(key): one for key, one in value.items() if str(key).isdecimal() and len(str(key)) < 10}
        value = [known[key] for key in sorted(known)]
    values = value if isinstance(value, (list, tuple)) else []
    found = [one if isinstance(one, int) and 0 <= one <= _HIGHEST else 0 for one in values[:_INTERVALS]]
    return found + [0] * (_INTERVALS - len(found))
