"""Header of a converted trace: the program as far as its snapshot describes it, and the allocator's settings."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .stacks import Frame

_LIBRARY = re.compile(
    r"(?P<installed>.*[/\\](?:site|dist)-packages[/\\])"
    r"|(?P<standard>.*[/\\][Ll]ib(?:64)?[/\\]python3\.\d+[/\\]|.*[/\\][Pp]ython3\d+[/\\][Ll]ib[/\\])"
    # A torch that is used from its build folder.
    r"|(?P<torch>.*[/\\]torch[/\\])(?=(?:nn|optim|autograd|utils|_dynamo|_inductor|distributed)[/\\]|_tensor\.py)"
)


def library_prefixes(filenames: Iterable[str]) -> list[str]:
    prefixes = {match[0] for match in map(_LIBRARY.match, filenames) if match}
    return sorted(prefixes)


def main_script(stacks: Iterable[Sequence[Frame]], prefixes: list[str]) -> str:
    """Return the file in whose top level most of the stacks begin, or "" if there is none."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        for name, filename, _ in reversed(stack):
            # The script of a launcher (torchrun) has no suffix.
            if name == "<module>" and filename.endswith(".py") and not filename.startswith(tuple(prefixes)):
                counts[filename] += 1
                break
    return counts.most_common(1)[0][0] if counts else ""


def make_header(
    stacks: Iterable[Sequence[Frame]], source: str, path: str, settings: Any, began_ns: int
) -> dict[str, Any]:
    stack_list = list(stacks)
    prefixes = library_prefixes({filename for stack in stack_list for _, filename, _ in stack})
    program = main_script(stack_list, prefixes)
    configured = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    return {
        "program": program,
        "arguments": [],
        "working_directory": os.path.dirname(program),
        "rank": "0",
        "started": began_ns / 1e9,
        "devices": ["cuda"],
        "options": {"stacks": "python" if stack_list else "none"},
        "trace": path,
        "converted_from": source,
        "library_prefixes": prefixes,
        "environment": {"PYTORCH_CUDA_ALLOC_CONF": configured} if isinstance(configured, str) and configured else {},
    }


_INTERVALS = 16
"""Number of divisions: for requests of 1 MiB, of 2 MiB, ... 32 GiB and more."""
_MAX_UINT64 = 2**64 - 1
_SIZE_SETTINGS = ("large_segment_size", "max_split_size", "max_non_split_rounding_size")
_SHARE_SETTINGS = ("garbage_collection_threshold",)
_BOOL_SETTINGS = ("expandable_segments", "graph_capture_record_stream_reuse")


def settings_json(settings: Mapping[str, Any], has_expandable: bool) -> str:
    """Return the text of a `config` event. Some releases omit expandable segments: `has_expandable` replaces them."""
    config: dict[str, Any] = {"expandable_segments": has_expandable}
    for name in _BOOL_SETTINGS:
        if isinstance(settings.get(name), bool):
            config[name] = settings[name]
    for name in _SIZE_SETTINGS:
        value = settings.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            config[name] = min(value, _MAX_UINT64) if value >= 0 else _MAX_UINT64  # torch writes the maximum as -1
    for name in _SHARE_SETTINGS:
        value = settings.get(name)
        if isinstance(value, (int, float)) and math.isfinite(value):
            config[name] = float(value)
    config["roundup_power2_divisions"] = _divisions(settings.get("roundup_power2_divisions"))
    return json.dumps(config, allow_nan=False)


def _divisions(value: Any) -> list[int]:
    """Return the divisions by interval; torch names each interval by its beginning in MiB."""
    if isinstance(value, Mapping):
        by_interval = {int(key): number for key, number in value.items() if str(key).isdecimal() and len(str(key)) < 10}
        value = [by_interval[key] for key in sorted(by_interval)]
    values = value if isinstance(value, (list, tuple)) else []
    divisions = [
        number if isinstance(number, int) and 0 <= number <= _MAX_UINT64 else 0 for number in values[:_INTERVALS]
    ]
    return divisions + [0] * (_INTERVALS - len(divisions))
