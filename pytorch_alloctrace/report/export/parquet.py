"""The events as a Parquet file, for pandas, DuckDB, Polars, Spark: a row an event, in order, with its line of code."""

from __future__ import annotations

from typing import BinaryIO

import pandas as pd

from ...errors import MissingPackageError
from ...reading.event_tables import EVENT_COLUMNS, iter_events
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.tables import site_columns

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
