"""Traces of the processes that a recorded program started."""

from __future__ import annotations

import math
import shlex
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_text import json_object
from .other_files import TRACE_MAGIC
from .recorded import RecordedTrace

_FILE_HEADER_BYTES, _BLOCK_HEADER_BYTES = 32, 136
_MAX_HEADER_BYTES = 1 << 20
_MAX_SECONDS = 1e11
"""Maximum plausible time, in seconds since 1970."""


@dataclass(frozen=True)
class Child:
    """A process that the program, or one of its children, started."""

    process: int
    parent_process: int
    command: str
    """As for a shell; "[NAME]" if it had no arguments."""
    seq: int
    """Number of the next event when it was found."""
    trace: str
    """Path of the process's own trace; "" if it has none."""


def list_children(trace: RecordedTrace) -> list[Child]:
    children = trace.reader.children()
    traces = _find_child_traces(trace) if children else {}
    return [
        Child(process, parent, _join(command), seq, traces.get((process, parent), ""))
        for seq, process, parent, command in children
    ]


def _join(command: str) -> str:
    """Return a recorded command as a shell would take it; "[NAME]" of a process without arguments as it is."""
    has_arguments = "\0" in command or not (command.startswith("[") and command.endswith("]"))
    return shlex.join(command.split("\0")) if has_arguments else command


def _find_child_traces(trace: RecordedTrace) -> dict[tuple[int, int], str]:
    """Return the path of the first trace of each process, by ids of process and parent, from the folder of `trace`.

    Only headers are read. A trace counts if it was started on the same host while `trace` was recorded (of a killed
    recording, the end is unknown). Process ids alone are not enough: containers reuse them from run to run.
    """
    host, own = trace.header.get("host"), trace.header.get("process")
    end_ns = trace.end_ns if trace.integrity.ended else math.inf
    starts: dict[tuple[int, int], tuple[float, str]] = {}
    for path in sorted(Path(trace.path).absolute().parent.glob(f"*{Path(trace.path).suffix}")):
        header = _read_header(path)
        process, parent, started = header.get("process"), header.get("parent_process"), header.get("started")
        if not isinstance(process, int) or not isinstance(parent, int) or not isinstance(started, (int, float)):
            continue
        if process == own or not 0 <= started < _MAX_SECONDS or header.get("host") != host:
            continue
        if trace.begin_ns <= started * 1e9 <= end_ns:
            start = started, str(path)
            starts[process, parent] = min(starts.get((process, parent), start), start)
    return {process: path for process, (_, path) in starts.items()}


def _read_header(path: Path) -> dict[str, Any]:
    """Return the JSON of a trace's first block; {} for other files."""
    try:
        if not path.is_file():  # opening a pipe would block
            return {}
        with path.open("rb") as file:
            beginning = file.read(_FILE_HEADER_BYTES + _BLOCK_HEADER_BYTES)
            if len(beginning) < _FILE_HEADER_BYTES + _BLOCK_HEADER_BYTES or not beginning.startswith(TRACE_MAGIC):
                return {}
            (size,) = struct.unpack_from("<Q", beginning, _FILE_HEADER_BYTES + 16)
            return json_object(file.read(min(size, _MAX_HEADER_BYTES)).decode(errors="replace"))
    except OSError:
        return {}
