"""The header of a converted trace: what a snapshot says of its program, and the allocator's settings."""

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
    # A torch that is not installed, but used where it was built.
    r"|(?P<torch>.*[/\\]torch[/\\])(?=(?:nn|optim|autograd|utils|_dynamo|_inductor|distributed)[/\\]|_tensor\.py)"
)


def library_prefixes(filenames: Iterable[str]) -> list[str]:
    """Folders of libraries that these files are in."""
    found = {match[0] for match in map(_LIBRARY.match, filenames) if match}
    return sorted(found)


def main_script(stacks: Iterable[Sequence[Frame]], prefixes: list[str]) -> str:
    """The file whose top level most of the stacks begin in; "" if none does."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        for name, filename, _ in reversed(stack):
            # The launcher's own script (torchrun) has no ending.
            if name == "<module>" and filename.endswith(".py") and not filename.startswith(tuple(prefixes)):
                counts[filename] += 1
                break
    return counts.most_common(1)[0][0] if counts else ""


def describe(stacks: Iterable[Sequence[Frame]], source: str, path: str, settings: Any, began_ns: int) -> dict[str, Any]:
    """The header of a trace."""
    known = list(stacks)
    prefixes = library_prefixes({filename for stack in known for _, filename, _ in stack})
    program = main_script(known, prefixes)
    configured = settings.get("PYTORCH_CUDA_ALLOC_CONF")
    return {
        "program": program,
        "arguments": [],
        "working_directory": os.path.dirname(program),
        "rank": "0",
        "started": began_ns / 1e9,
        "devices": ["cuda"],
        "options": {"stacks": "python" if known else "none"},
        "trace": path,
        "converted_from": source,
        "library_prefixes": prefixes,
        "environment": {"PYTORCH_CUDA_ALLOC_CONF": configured} if isinstance(configured, str) and configured else {},
    }


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
