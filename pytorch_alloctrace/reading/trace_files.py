"""Rewriting of trace files: recovery of the trace of a killed process, and compaction."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .. import _replay
from .other_files import explain_other_file
from .positions import Position
from .recorded import Progress, RecordedTrace


@dataclass(frozen=True)
class Finished:
    """Result of `finish`."""

    trace: Path
    """The trace, now one complete file."""
    was_ended: bool
    """True if the trace already had an end, so that only its spool was removed, if any."""
    spool: Path | None
    """The spool that was read, and removed unless `copied_from` is set; None: no spool."""
    copied_from: Path | None
    """The recorded trace, if `trace` is a copy of it or was moved: the recorded trace keeps the spool. Else None."""
    events: int
    """Number of events copied from the spool."""
    calls_in_progress: int
    """Number of allocator calls that had not returned when the program was killed."""


def finish(
    path: str | os.PathLike[str], *, spool: str | os.PathLike[str] | None = None, force: bool = False
) -> Finished:
    """Recover the trace of a killed process: append the events of its spool, and remove the spool.

    The end of the trace is recorded as "killed" (`Integrity.end_reason`). The trace is readable at any time during the
    call. The spool is removed last, so that an interrupted call can be repeated. A spool in the folder recorded in the
    header is not removed if the trace is a copy.

    Args:
        path: The trace file.
        spool: The spool, if it was moved; it is removed.
        force: Continue although nothing shows whether the recording still runs: the file system has no locks, and the
            recording was made on another machine or in another container.

    Returns:
        The trace, the spool, and the number of recovered events.

    Raises:
        TraceError: The recording still runs (also for a copy of its trace), the spool of a trace without an end is
            missing, or the trace cannot be read or written.
    """
    with explain_other_file(path):
        result = _replay.finish_trace(os.fsencode(path), os.fsencode(spool) if spool else "", force)
    spool_path = Path(os.fsdecode(result.spool)) if result.spool else None
    recorded_path = Path(os.fsdecode(result.recorded_path)) if result.recorded_path else None
    return Finished(Path(path), result.was_ended, spool_path, recorded_path, result.events, result.uncommitted)


@dataclass(frozen=True)
class Compacted:
    """Result of `compact`."""

    trace: Path
    """The compacted trace."""
    until: int
    """First event that is not compacted."""
    events: int
    """Number of compacted events."""
    bytes_before: int
    """Size of the original trace in bytes."""
    bytes_after: int
    """Size of the compacted trace in bytes."""


def compact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    until: Position,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Compacted:
    """Write a smaller trace, in which the events up to and including a position are compacted into sums.

    The compacted trace has exact totals of each stack, exact peaks of allocated and reserved memory with their
    composition, the leaks of surviving blocks, and everything after the position. Curves over time have a lower
    resolution. Queries for single events before the position, and for the memory before it, raise CompactedError. See
    docs/long-runs.md.

    Args:
        path: The trace file.
        out: The file to write.
        until: A position, as `at` of `Trace.live`. A compacted trace may be compacted up to a later position.
        overwrite: Whether to overwrite `out`.
        progress: Called repeatedly with the share done, 0 to 1.

    Returns:
        The compacted trace, with sizes and number of compacted events.

    Raises:
        TraceError: The trace is still being recorded, cannot be read, or is already compacted up to the position, or
            `out` cannot be written.
        PositionError: The trace lacks the position.
    """
    trace = RecordedTrace(path, progress=progress)
    result = trace.write_compacted(os.fsencode(out), trace.first_event_after(until), overwrite)
    return Compacted(Path(out), result.until, result.events, result.bytes_before, result.bytes_after)
