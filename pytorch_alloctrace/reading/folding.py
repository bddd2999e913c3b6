"""Folding: the beginning of a trace becomes sums, and the trace smaller."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .positions import Position
from .recorded import Progress, RecordedTrace


@dataclass(frozen=True)
class Folded:
    """What `fold` did."""

    trace: Path
    """The smaller trace."""
    until: int
    """The first event that it has as such."""
    events: int
    """How many came before it, and are folded."""
    bytes_before: int
    """Size of the trace that was folded."""
    bytes_after: int


def fold(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    until: Position,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Folded:
    """Writes a smaller trace: what happened up to and including a position is folded into sums.

    Exact in the folded trace are what each stack has allocated, the peaks of allocated and reserved memory and what
    they consisted of, the leaks made of blocks that stay, and everything after the position. Curves over time are there
    at a lower resolution. Single events before the position, and the memory at a moment before it, are not: asking for
    them raises FoldedError. See docs/long-runs.md.

    until: as `at` of `Trace.live`. A trace may be folded again, further.

    Raises TraceError if the trace still is recorded, cannot be read or is folded up to there already, or if `out`
    cannot be written; PositionError for a position that the trace does not have.
    """
    trace = RecordedTrace(path, progress=progress)
    done = trace.write_folded(os.fsencode(out), trace.first_event_after(until), overwrite)
    return Folded(Path(out), done.until, done.events, done.bytes_before, done.bytes_after)
