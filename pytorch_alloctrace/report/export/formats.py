"""The formats that a trace can be exported to, and what each has."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ..atomic import write_whole
from .memory_viz import memory_viz
from .parquet import write_parquet
from .perfetto import perfetto
from .stacks import collapsed, speedscope


@dataclass(frozen=True)
class Selection:
    """What is exported: the state at a moment, or what happened in a stretch."""

    at: Position | None = None
    since: Position | None = None
    until: Position | None = None
    device: str | None = None


@dataclass(frozen=True)
class Format:
    """One format."""

    ending: str
    """Of the file, with its dot."""
    reader: str
    """What opens it."""
    has: str
    """What is in it, in a line."""
    write: Callable[[RecordedTrace, Selection, BinaryIO], object]
    """Writes it to a file."""


FORMATS: dict[str, Format] = {
    "speedscope": Format(
        ".speedscope.json",
        "https://www.speedscope.app",
        "what each stack holds, or allocated in a range",
        lambda trace, what, file: file.write(speedscope(trace, what.at, what.since, what.until, what.device)),
    ),
    "collapsed": Format(
        ".collapsed.txt",
        "flamegraph.pl and other flame graph tools",
        "the same as text: a stack a line, and its bytes",
        lambda trace, what, file: file.write(collapsed(trace, what.at, what.since, what.until, what.device)),
    ),
    "perfetto": Format(
        ".perfetto.json",
        "https://ui.perfetto.dev and chrome://tracing",
        "the memory over time, with steps, regions and marks",
        lambda trace, what, file: file.write(perfetto(trace, what.since, what.until, what.device)),
    ),
    "memory-viz": Format(
        ".pickle",
        "https://pytorch.org/memory_viz",
        "segments, blocks and events, as _dump_snapshot writes",
        lambda trace, what, file: file.write(memory_viz(trace, what.at, what.since, what.until, what.device)),
    ),
    "parquet": Format(
        ".parquet",
        "pandas, DuckDB, Polars (writing it needs pyarrow)",
        "a row an event, with its line of code",
        lambda trace, what, file: write_parquet(trace, what.since, what.until, what.device, file),
    ),
}
"""By name."""


def export(trace: RecordedTrace, path: str | os.PathLike[str], to: str, selection: Selection) -> Path:
    """Write a trace in the format of another tool: see `Trace.export`."""
    if to not in FORMATS:
        raise ValueError(f"to={to!r} is not known: use one of {', '.join(FORMATS)}")
    return write_whole(path, lambda file: FORMATS[to].write(trace, selection, file), trace=trace.path)
