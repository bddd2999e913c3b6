"""The events as a Parquet file, for pandas, DuckDB, Polars, Spark: a row an event, in order, with its line of code."""

from __future__ import annotations

from typing import Any, BinaryIO

import pandas as pd

from ...errors import MissingPackageError
from ...reading.event_table import EVENT_COLUMNS
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace

_TEXTS = ("kind", "device", "pool", "site", "filename", "function")
_UNSIGNED = ("address",)


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

    def kind(name: str) -> Any:
        if name in _TEXTS:
            return pyarrow.string()
        return pyarrow.uint64() if name in _UNSIGNED else pyarrow.int64()

    schema = pyarrow.schema([(name, kind(name)) for name in names])
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for chunk in trace.iter_events(since=since, until=until):
            events = chunk if named is None else chunk[chunk["device"] == named]
            writer.write_table(pyarrow.Table.from_pandas(_with_sites(trace, events), schema, preserve_index=False))


def _with_sites(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    pools = events["pool"].map(lambda pool: f"{pool[0]},{pool[1]}")
    return events.assign(pool=pools, **trace.stacks.site_columns(events["stack_id"].to_numpy()))
