"""Child processes of a program: peaks and leaks of those that were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import AlloctraceError
from ..reading.child_traces import list_children
from ..reading.recorded import RecordedTrace

MAX_BYTES = 128 << 20
"""Maximum size of all judged traces together: about 20 million events, 10 seconds."""
MIN_CHARGED_BYTES = 1 << 20
"""Size that a smaller trace counts as, which bounds the number of judged children, too."""
_Summary = TypeVar("_Summary")
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class ChildRun(Generic[_Summary]):
    """A recorded child process."""

    process: int
    command: str
    trace: str
    """Path of its trace."""
    summary: _Summary | None
    """Summary of its leaks; None if the trace was not judged, or cannot be read."""


@dataclass(frozen=True)
class ChildRuns(Generic[_Summary]):
    runs: tuple[ChildRun[_Summary], ...]
    """Judged children, the largest traces first, and those whose traces cannot be read."""
    unjudged: tuple[ChildRun[_Summary], ...]
    """Recorded children that were not judged: together with `runs`, their traces exceed MAX_BYTES."""
    unrecorded: tuple[str, ...]
    """Commands of Python processes that ran and have no trace, without repetitions."""
    unrecorded_count: int


def find_child_runs(trace: RecordedTrace, summarize_leaks: Callable[[RecordedTrace], _Summary]) -> ChildRuns[_Summary]:
    """Return the children of a traced process, and what those with traces leaked and held.

    The largest traces are judged first; one that exceeds what is left of MAX_BYTES is passed over.
    """
    children = list_children(trace)
    sizes = {child.trace: max(_file_bytes(child.trace), MIN_CHARGED_BYTES) for child in children if child.trace}
    runs, unjudged, remaining_bytes = [], [], MAX_BYTES
    for child in sorted((child for child in children if child.trace), key=lambda child: -sizes[child.trace]):
        if sizes[child.trace] > remaining_bytes:
            unjudged.append(ChildRun[_Summary](child.process, child.command, child.trace, None))
            continue
        remaining_bytes -= sizes[child.trace]
        try:
            summary: _Summary | None = summarize_leaks(RecordedTrace(Path(child.trace)))
        except AlloctraceError:
            summary = None
        runs.append(ChildRun(child.process, child.command, child.trace, summary))
    unrecorded = [child.command for child in children if not child.trace and _is_python(child.command)]
    return ChildRuns(tuple(runs), tuple(unjudged), tuple(dict.fromkeys(unrecorded)), len(unrecorded))


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _is_python(command: str) -> bool:
    """Return whether a command runs Python code of a program."""
    program = command.partition(" ")[0].strip("[]'\"").rpartition("/")[2]
    return program.startswith("python") and not any(helper in command for helper in _HELPERS)
