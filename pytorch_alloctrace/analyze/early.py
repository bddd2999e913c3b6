"""Which trace a command will replay, as far as can be seen before the command line is parsed: what the verb needs takes
time to import, and the pass may begin meanwhile."""

from __future__ import annotations

import os
from collections.abc import Sequence

REPLAYING = frozenset(
    {"diagnose", "leaks", "peak", "sites", "oom", "timeline", "fragmentation", "annotate", "report", "verify"}
)
"""Verbs that need nothing but the pass over the whole trace, and what follows from it."""
_ANOTHER_WAY = ("--sp", "--u", "-h", "--h", "--v")
"""Options with which a trace is read in another way, or not at all: --spool, --user-path, --help, --version."""


def trace_to_replay(arguments: Sequence[str]) -> str | None:
    """Its path. None where that is not certain; then nothing is lost but time."""
    if any(word.startswith(_ANOTHER_WAY) for word in arguments):
        return None
    words = [word for word in arguments if not word.startswith("-")]
    files = [word for word in words if os.path.isfile(word)]
    others = [word for word in words if word not in files and not word.isdecimal()]
    return files[0] if len(files) == 1 and REPLAYING.issuperset(others) else None
