"""Rewriting trace files: ending the trace of a killed recording, and compacting the beginning of a trace into sums."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .. import _replay
from .positions import Position
from .recorded import Progress, RecordedTrace


@dataclass(frozen=True)
class Finished:
    """What `finish` did."""

    trace: Path
    """The trace, which is one whole file now."""
    was_ended: bool
    """It had its end already: at most a spool was left to remove."""
    spool: Path | None
    """The spool that was read, and removed unless `copied_from` is set; None if there was none."""
    copied_from: Path | None
    """The trace that was recorded, if `trace` is a copy of it or was moved: the spool stays for it. Else None."""
    events: int
    """How many events were taken over from the spool."""
    calls_in_progress: int
    """Allocator calls in progress when the program was killed; they had not returned."""


def finish(
    path: str | os.PathLike[str], *, spool: str | os.PathLike[str] | None = None, force: bool = False
) -> Finished:
    """End the trace of a recording that was killed: write what its spool has into it, state that the program was killed
    as its end (`Integrity.end_reason`), and remove the spool.

    The trace can be read at any time while this runs, and the spool is removed last: what is interrupted can be
    repeated. A spool that is not next to the trace, and is found where the trace's header says, is removed only if the
    trace is the file that was recorded, not for a copy. spool: where the spool is, if it was moved; it is removed.
    force: go on where the file system has no locks and the recording was made on another machine or in another
    container, so that nothing shows whether it still runs.

    Raises TraceError if the recording still runs (also for a copy of its trace), if the spool of a trace without an end
    is missing, or if the trace cannot be read or written.
    """
    done = _replay.finish_trace(os.fsencode(path), os.fsencode(spool) if spool else "", force)
    read = Path(os.fsdecode(done.spool)) if done.spool else None
    recorded = Path(os.fsdecode(done.recorded_path)) if done.recorded_path else None
    return Finished(Path(path), done.was_ended, read, recorded, done.events, done.uncommitted)


@dataclass(frozen=True)
class Compacted:
    """What `compact` did."""

    trace: Path
    """The smaller trace."""
    until: int
    """The first event that it has as such."""
    events: int
    """How many came before it, and are compacted."""
    bytes_before: int
    """Size of the trace that was compacted."""
    bytes_after: int
    """Size of the trace that was written."""


def compact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    until: Position,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Compacted:
    """Writes a smaller trace: what happened up to and including a position is compacted into sums.

    Exact in the compacted trace are what each stack has allocated, the peaks of allocated and reserved memory and what
    they consisted of, the leaks made of blocks that stay, and everything after the position. Curves over time are there
    at a lower resolution. Single events before the position, and the memory at a moment before it, are not: asking for
    them raises CompactedError. See docs/long-runs.md.

    until: as `at` of `Trace.live`. A trace may be compacted again, further.

    Raises TraceError if the trace still is recorded, cannot be read or is compacted up to there already, or if `out`
    cannot be written; PositionError for a position that the trace does not have.
    """
    trace = RecordedTrace(path, progress=progress)
    done = trace.write_compacted(os.fsencode(out), trace.first_event_after(until), overwrite)
    return Compacted(Path(out), done.until, done.events, done.bytes_before, done.bytes_after)
