"""The formats that `export` writes. The events as Parquet, for pandas, DuckDB, Polars and Spark, are written here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pandas as pd

from ...errors import MissingPackageError
from ...reading.event_tables import EVENT_COLUMNS, iter_events
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.tables import site_columns
from ..file_output import write_whole
from .memory_viz import memory_viz
from .perfetto import perfetto
from .stacks import collapsed, speedscope

_TEXTS = ("kind", "device", "pool", "site", "filename", "function")


def write_parquet(
    trace: RecordedTrace, since: Position | None, until: Position | None, device: str | None, file: BinaryIO
) -> None:
    """EVENT_COLUMNS, the pool as "0,0", then site, filename, line and function of the stack. A million events are
    written at a time. Raises MissingPackageError without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError("Parquet needs pyarrow: pip install pyarrow") from None
    named = trace.named_device(device)
    names = (*EVENT_COLUMNS, "site", "filename", "line", "function")

    schema = pyarrow.schema([(name, pyarrow.string() if name in _TEXTS else pyarrow.int64()) for name in names])
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in iter_events(trace, since=since, until=until):
            events = chunk if named is None else chunk[chunk["device"] == named]
            writer.write_table(pyarrow.Table.from_pandas(_with_sites(trace, events), schema, preserve_index=False))


def _with_sites(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    pools = events["pool"].map(lambda pool: f"{pool[0]},{pool[1]}")
    return events.assign(pool=pools, **site_columns(trace.stacks, events["stack_id"].to_numpy()))


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
