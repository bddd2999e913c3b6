"""What a snapshot's frames tell about the program: the snapshot says nothing of it."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
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
