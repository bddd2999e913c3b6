"""Export formats, and the Parquet writer."""

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

_TEXT_COLUMNS = ("kind", "device", "pool", "site", "filename", "function")


def write_parquet(
    trace: RecordedTrace, since: Position | None, until: Position | None, device: str | None, file: BinaryIO
) -> None:
    """Write the events of a range as Parquet: EVENT_COLUMNS, with the pool as "0,0", and the site columns."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingPackageError("Parquet needs pyarrow: pip install pyarrow") from None
    selected_device = trace.named_device(device)
    names = (*EVENT_COLUMNS, "site", "filename", "line", "function")
    schema = pyarrow.schema([(name, pyarrow.string() if name in _TEXT_COLUMNS else pyarrow.int64()) for name in names])
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in iter_events(trace, since=since, until=until):
            events = chunk if selected_device is None else chunk[chunk["device"] == selected_device]
            writer.write_table(pyarrow.Table.from_pandas(_with_sites(trace, events), schema, preserve_index=False))


def _with_sites(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    pools = events["pool"].map(lambda pool: f"{pool[0]},{pool[1]}")
    return events.assign(pool=pools, **site_columns(trace.stacks, events["stack_id"].to_numpy()))


@dataclass(frozen=True)
class Selection:
    """Part of a trace to export: the state at a position, or the events of a range."""

    at: Position | None = None
    since: Position | None = None
    until: Position | None = None
    device: str | None = None


@dataclass(frozen=True)
class Format:
    """Format of another tool: file suffix, programs that read it, and its contents for the help.

    takes_at: whether `Selection.at` selects a state to export; otherwise the file contains the events of a range.
    """

    suffix: str
    reader: str
    contents: str
    write: Callable[[RecordedTrace, Selection, BinaryIO], object]
    takes_at: bool = True


FORMATS: dict[str, Format] = {
    "speedscope": Format(
        ".speedscope.json",
        "https://www.speedscope.app",
        "what each stack holds, or allocated in a range",
        lambda trace, part, file: file.write(speedscope(trace, part.at, part.since, part.until, part.device)),
    ),
    "collapsed": Format(
        ".collapsed.txt",
        "flamegraph.pl and other flame graph tools",
        "speedscope's stacks as text: one a line, and its bytes",
        lambda trace, part, file: file.write(collapsed(trace, part.at, part.since, part.until, part.device)),
    ),
    "perfetto": Format(
        ".perfetto.json",
        "https://ui.perfetto.dev and chrome://tracing",
        "the memory over time, with steps, regions and marks",
        lambda trace, part, file: file.write(perfetto(trace, part.since, part.until, part.device)),
        takes_at=False,
    ),
    "memory-viz": Format(
        ".pickle",
        "https://pytorch.org/memory_viz",
        "segments, blocks and events, as _dump_snapshot writes",
        lambda trace, part, file: file.write(memory_viz(trace, part.at, part.since, part.until, part.device)),
    ),
    "parquet": Format(
        ".parquet",
        "pandas, DuckDB, Polars (writing it needs pyarrow)",
        "a row an event, with its line of code",
        lambda trace, part, file: write_parquet(trace, part.since, part.until, part.device, file),
        takes_at=False,
    ),
}


def export(trace: RecordedTrace, path: str | os.PathLike[str], to: str, selection: Selection) -> Path:
    """Write a trace in the format of another tool: see `Trace.export`."""
    if to not in FORMATS:
        raise ValueError(f"to={to!r} is not known: use one of {', '.join(FORMATS)}")
    return write_whole(path, lambda file: FORMATS[to].write(trace, selection, file), trace=trace.path)
