"""A finding: one thing that the diagnosis reports, in words. `leaks`, `oom` and `conditions` each word their own."""

from __future__ import annotations

from dataclasses import dataclass

from ..analysis.leaks.leak import Leak
from ..reading.sites import Site


@dataclass(frozen=True)
class Finding:
    """One statement about the trace. Bytes are requested bytes."""

    kind: str
    """"incomplete", "oom", "leak", "minor_leak", "no_leak", "not_judged", or the kind of a condition: see
    `analysis.free_memory.conditions`."""
    title: str
    """One line without a full stop."""
    device: str
    """As torch spells it; several, separated by ", ", if it is about all of them."""
    bytes: int
    """What is at stake; 0 if nothing is wrong."""
    confidence: float | None
    """How certain a leak is, from 0 to 1."""
    site: Site | None
    """The line to look at."""
    stack_id: int
    """The stack with the most bytes; 0: none."""
    sentences: tuple[str, ...]
    """What it rests on, and what to do."""
    leak: Leak | None = None
    """The leak that it words."""
