"""Child processes of a program: peaks and leaks of those that were recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import AlloctraceError
from ..reading.child_traces import list_children
from ..reading.recorded import RecordedTrace

MAX_CHILDREN = 8
"""Maximum number of children whose traces are read: those with the largest files."""
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
    """Summary of its leaks; None if the trace cannot be read."""


@dataclass(frozen=True)
class ChildRuns(Generic[_Summary]):
    runs: tuple[ChildRun[_Summary], ...]
    """Recorded children, the largest traces first."""
    more: int
    """Number of recorded children that are not in `runs`."""
    unrecorded: tuple[str, ...]
    """Commands of Python processes that ran and have no trace, without repetitions."""
    unrecorded_count: int


def find_child_runs(trace: RecordedTrace, summarize_leaks: Callable[[RecordedTrace], _Summary]) -> ChildRuns[_Summary]:
    """Return the children of a traced process, and what those with traces leaked and held."""
    children = list_children(trace)
    recorded = sorted((child for child in children if child.trace), key=lambda child: -_file_bytes(child.trace))
    runs = []
    for child in recorded[:MAX_CHILDREN]:
        try:
            summary: _Summary | None = summarize_leaks(RecordedTrace(Path(child.trace)))
        except AlloctraceError:
            summary = None
        runs.append(ChildRun(child.process, child.command, child.trace, summary))
    unrecorded = [child.command for child in children if not child.trace and _is_python(child.command)]
    return ChildRuns(tuple(runs), len(recorded) - len(runs), tuple(dict.fromkeys(unrecorded)), len(unrecorded))


def _file_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _is_python(command: str) -> bool:
    """Return whether a command runs Python code of a program."""
    program = command.partition(" ")[0].strip("[]'\"").rpartition("/")[2]
    return program.startswith("python") and not any(helper in command for helper in _HELPERS)
