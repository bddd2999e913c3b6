"""DataFrames of events: one table, or chunks for traces larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .names import KINDS, kind_name
from .positions import Position
from .recorded import FREES, RecordedTrace
from .table import Table

EVENT_COLUMNS = (
    *("seq", "time_ns", "kind", "device", "address", "requested_bytes", "stream", "pool", "thread", "stack_id", "step"),
)
AUTOGRAD_COLUMNS = ("autograd_seq", "node_seq", "node_thread", "node_type", "forward_stack_id")
"""Optional columns of `Trace.events`. autograd_seq: number of the thread's next autograd node. node_seq, node_thread,
node_type: number, creating thread and type of the node that backward is evaluating. forward_stack_id: stack of the
forward that caused an allocation of backward, if backward has no stack; 0 if unknown."""
_MAX_COMPACTED_EVENTS = 1024
"""Maximum number of events kept from a compacted part: see csrc/core/replay/run_evidence.h."""
_CHUNK_ROWS = 50_000
_LARGE = 2_000_000
"""Number of events above which the table takes more memory than the replay's state."""
_STATE_COLUMNS = ("requested_bytes", "forward_stack_id")
"""Columns that need the state of the replay."""


def events(
    trace: RecordedTrace,
    *,
    since: Position | None = None,
    until: Position | None = None,
    columns: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> pd.DataFrame:
    selected = EVENT_COLUMNS if columns is None else tuple(columns)
    groups = [selected]
    if trace.integrity.events > _LARGE:
        # Two passes, the state columns first: the replay's state is freed before the other columns take memory.
        split = [tuple(name for name in selected if (name in _STATE_COLUMNS) == is_first) for is_first in (True, False)]
        groups = [group for group in split if group] or groups
    rows = trace.integrity.events + (_MAX_COMPACTED_EVENTS if trace.integrity.compacted_until else 0)
    series: dict[str, pd.Series[Any]] = {}
    for group in groups:
        builder = _TableBuilder(rows)
        for chunk in iter_events(trace, _CHUNK_ROWS, since=since, until=until, columns=group, kinds=kinds):
            builder.add(chunk)
        table = builder.table() if builder.rows else _EventNames(trace).table(_no_events(), group)
        series |= {str(name): table[name] for name in table}
    return pd.DataFrame({name: series[name] for name in selected}, copy=False)


def iter_events(
    trace: RecordedTrace,
    chunk: int = 1_000_000,
    *,
    since: Position | None = None,
    until: Position | None = None,
    columns: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[pd.DataFrame]:
    """Return the events in tables of about `chunk` rows: see `Trace.events`."""
    selected = tuple(columns) if columns is not None else EVENT_COLUMNS
    for name in selected:
        if name not in EVENT_COLUMNS + AUTOGRAD_COLUMNS:
            raise ValueError(
                f"events have no column {name!r}: use any of {', '.join(EVENT_COLUMNS + AUTOGRAD_COLUMNS)}"
            )
    unknown = [kind for kind in kinds or () if kind not in KINDS]
    if unknown:
        raise ValueError(f"there are no events of kind {unknown[0]!r}: use any of {', '.join(KINDS)}")
    # Sizes of frees and forward stacks depend on earlier events, and need the replay.
    has_frees = kinds is None or not set(FREES).isdisjoint(kinds)
    with_state = "forward_stack_id" in selected or ("requested_bytes" in selected and has_frees)
    names = _EventNames(trace)
    within = trace.unchecked_range(since, until)
    tables = trace.iter_events(within, kinds, chunk=chunk, with_state=with_state)
    return (names.table(table, selected) for table in tables)


def node_type_names(trace: RecordedTrace, numbers: npt.NDArray[np.integer[Any]]) -> Any:
    """Return the full type names of autograd nodes given by number; "" for no node."""
    names = trace.node_types
    return pd.array(names[np.minimum(numbers, len(names) - 1)], dtype=pd.Series([""]).dtype)


def _no_events() -> Table:
    columns = ("seq", "time_ns", "kind", "location", "address", "requested_bytes", *AUTOGRAD_COLUMNS)
    narrow = ("thread", "stack_id", "forward_stack_id")
    return Table({name: np.zeros(0, np.int64) for name in columns} | {name: np.zeros(0, np.int32) for name in narrow})


class _EventNames:
    """Converter of event columns from numbers to names."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._places: tuple[Any, Any, Any] | None = None

    def table(self, events: Table, columns: Sequence[str]) -> pd.DataFrame:
        location = events["location"]
        series: dict[str, Any] = {}
        for name in columns:
            if name == "kind":
                count = max(len(KINDS), int(events["kind"].max(initial=0)) + 1)
                names = pd.Index([kind_name(number) for number in range(count)])
                series[name] = pd.Categorical.from_codes(events["kind"].astype(np.int16), categories=names)
            elif name in ("device", "stream", "pool"):
                number = ("device", "stream", "pool").index(name)
                series[name] = self._read_places(int(location.max(initial=0)))[number][location]
            elif name == "step":
                series[name] = self._steps(events["seq"])
            elif name == "node_type":
                series[name] = node_type_names(self._trace, events["node_type"])
            else:
                series[name] = events[name]
        # No copy: the arrays are not shared, and a copy takes a sixth of the time of reading all events.
        return pd.DataFrame(series, copy=False)

    def _steps(self, seq: npt.NDArray[Any]) -> Any:
        positions = self._trace.positions_without_levels
        steps = positions.step_of(seq)
        # int32 halves the column in the largest table.
        values = steps.data.astype(np.int32) if positions.highest_step < 1 << 31 else steps.data
        return pd.arrays.IntegerArray(values, np.ma.getmaskarray(steps))

    def _read_places(self, highest: int) -> tuple[Any, Any, Any]:
        if self._places is None or highest >= len(self._places[1]):
            places = self._trace.locations.up_to(highest)
            pools = pd.Index([*dict.fromkeys(places.pools.tolist())], tupleize_cols=False)
            self._places = (
                pd.Categorical(places.devices),
                pd.Categorical(places.streams),
                pd.Categorical.from_codes(
                    pools.get_indexer(pd.Index(places.pools.tolist(), tupleize_cols=False)), categories=pools
                ),
            )
        return self._places


class _TableBuilder:
    """Table filled chunk by chunk without a second copy. `rows` is its capacity; unused rows take no memory."""

    def __init__(self, rows: int) -> None:
        self._capacity = rows
        self.rows = 0
        self._columns: dict[str, _ColumnBuilder] = {}

    def add(self, chunk: pd.DataFrame) -> None:
        end = self.rows + len(chunk)
        for name in chunk:
            column = self._columns.get(str(name))
            if column is None:
                column = self._columns[str(name)] = _ColumnBuilder(self._capacity, chunk[name].array)
            column.put(chunk[name].array, self.rows, end)
        self.rows = end

    def table(self) -> pd.DataFrame:
        """Return all rows. At least one chunk must have been added."""
        columns = {name: column.until(self.rows) for name, column in self._columns.items()}
        return pd.DataFrame(columns, copy=False)


class _ColumnBuilder:
    def __init__(self, rows: int, first_chunk: Any) -> None:
        self._dtype = first_chunk.dtype
        self._categories = first_chunk.categories if isinstance(first_chunk, pd.Categorical) else None
        # Pages that are never written take no memory.
        self._values = np.empty(rows, _split_missing(first_chunk)[0].dtype)
        self._missing = np.empty(rows, np.bool_) if isinstance(first_chunk, pd.arrays.IntegerArray) else None

    def put(self, chunk: Any, begin: int, end: int) -> None:
        if self._categories is not None and not self._categories.equals(chunk.categories):
            # An event kind of a newer recorder first occurs in a later chunk.
            self._categories = self._categories.append(chunk.categories.difference(self._categories, sort=False))
            chunk = chunk.set_categories(self._categories)
        values, missing = _split_missing(chunk)
        if values.dtype.itemsize > self._values.dtype.itemsize:
            self._values = self._values.astype(values.dtype)
        self._values[begin:end] = values
        if self._missing is not None:
            self._missing[begin:end] = missing

    def until(self, end: int) -> Any:
        values = self._values[:end]
        if self._categories is not None:
            return pd.Categorical.from_codes(values, categories=self._categories)
        if self._missing is not None:
            return pd.arrays.IntegerArray(values, self._missing[:end])
        return pd.array(values, dtype=self._dtype) if values.dtype == object else values


def _split_missing(column: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return the values of a column as a numpy array, and the mask of missing values of a nullable column."""
    if isinstance(column, pd.Categorical):
        return np.asarray(column.codes), None
    if isinstance(column, pd.arrays.IntegerArray):
        missing = np.asarray(column.isna())
        return column.to_numpy(dtype=column.dtype.type, na_value=0), missing
    return np.asarray(column), None
