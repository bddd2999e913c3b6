"""DataFrames of events: as a whole, or in parts for traces larger than memory."""

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
"""The default columns of `Trace.events`."""
AUTOGRAD_COLUMNS = ("autograd_seq", "node_seq", "node_thread", "node_type", "forward_stack_id")
"""More columns, on request. autograd_seq: the number of the next autograd node of the thread. node_seq, node_thread,
node_type: number, maker thread and type of the node that is being evaluated (in backward). forward_stack_id: the stack
of the forward that caused an allocation of backward, where backward has no stack and that is known; else 0."""
_KEPT_WHEN_COMPACTED = 1024
"""Events of a compacted part that a trace has at most: see csrc/core/replay/run_evidence.h."""
_CHUNK = 50_000
"""Rows of the parts that the table of all events is made of."""
_LARGE = 2_000_000
"""Events, of which a table takes more memory than it takes to read them."""
_FROM_STATE = ("requested_bytes", "forward_stack_id")
"""Columns of events that follow from the events before."""


def events(
    trace: RecordedTrace,
    *,
    since: Position | None = None,
    until: Position | None = None,
    columns: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> pd.DataFrame:
    """See `Trace.events`."""
    wanted = EVENT_COLUMNS if columns is None else tuple(columns)
    groups = [wanted]
    if trace.integrity.events > _LARGE:
        # What only the replay's state knows comes first: the state is gone before the rest takes its memory.
        parts = [tuple(name for name in wanted if (name in _FROM_STATE) == is_first) for is_first in (True, False)]
        groups = [part for part in parts if part] or groups
    rows = trace.integrity.events + (_KEPT_WHEN_COMPACTED if trace.integrity.compacted_until else 0)
    series: dict[str, pd.Series[Any]] = {}
    for group in groups:
        gathered = _GatheredTable(rows)
        for part in iter_events(trace, _CHUNK, since=since, until=until, columns=group, kinds=kinds):
            gathered.add(part)
        table = gathered.table() if gathered.rows else _EventNames(trace).table(_no_events(), group)
        series |= {str(name): table[name] for name in table}
    return pd.DataFrame({name: series[name] for name in wanted}, copy=False)


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
    wanted = tuple(columns) if columns is not None else EVENT_COLUMNS
    for name in wanted:
        if name not in EVENT_COLUMNS + AUTOGRAD_COLUMNS:
            raise ValueError(
                f"events have no column {name!r}: use any of {', '.join(EVENT_COLUMNS + AUTOGRAD_COLUMNS)}"
            )
    unknown = [kind for kind in kinds or () if kind not in KINDS]
    if unknown:
        raise ValueError(f"there are no events of kind {unknown[0]!r}: use any of {', '.join(KINDS)}")
    # The sizes of frees, and what in forward caused backward, follow from the events before: the replay knows them.
    has_frees = kinds is None or not set(FREES).isdisjoint(kinds)
    with_state = "forward_stack_id" in wanted or ("requested_bytes" in wanted and has_frees)
    names = _EventNames(trace)
    within = trace.unchecked_range(since, until)
    tables = trace.iter_events(within, kinds, chunk=chunk, with_state=with_state)
    return (names.table(table, wanted) for table in tables)


def node_type_names(trace: RecordedTrace, numbers: npt.NDArray[np.integer[Any]]) -> Any:
    """Return types of autograd nodes, in full, by number; "" for none."""
    names = trace.node_types
    return pd.array(names[np.minimum(numbers, len(names) - 1)], dtype=pd.Series([""]).dtype)


def _no_events() -> Table:
    columns = ("seq", "time_ns", "kind", "location", "address", "requested_bytes", *AUTOGRAD_COLUMNS)
    narrow = ("thread", "stack_id", "forward_stack_id")
    return Table({name: np.zeros(0, np.int64) for name in columns} | {name: np.zeros(0, np.int32) for name in narrow})


class _EventNames:
    """The names that the numbers of events stand for."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._places: tuple[Any, Any, Any] | None = None

    def table(self, events: Table, columns: Sequence[str]) -> pd.DataFrame:
        """Return the events of one part with these columns."""
        location = events["location"]
        series: dict[str, Any] = {}
        for name in columns:
            if name == "kind":
                count = max(len(KINDS), int(events["kind"].max(initial=0)) + 1)
                names = pd.Index([kind_name(number) for number in range(count)])
                series[name] = pd.Categorical.from_codes(events["kind"].astype(np.int16), categories=names)
            elif name in ("device", "stream", "pool"):
                number = ("device", "stream", "pool").index(name)
                series[name] = self._of_locations(int(location.max(initial=0)))[number][location]
            elif name == "step":
                series[name] = self._steps(events["seq"])
            elif name == "node_type":
                series[name] = node_type_names(self._trace, events["node_type"])
            else:
                series[name] = events[name]
        # Nobody else has these arrays: to copy them into one block is a sixth of the time of reading all events.
        return pd.DataFrame(series, copy=False)

    def _steps(self, seq: npt.NDArray[Any]) -> Any:
        positions = self._trace.positions_without_levels
        steps = positions.step_of(seq)
        # In the largest table that there is: half as wide, if all of the trace's steps have room in it.
        values = steps.data.astype(np.int32) if positions.highest_step < 1 << 31 else steps.data
        return pd.arrays.IntegerArray(values, np.ma.getmaskarray(steps))

    def _of_locations(self, highest: int) -> tuple[Any, Any, Any]:
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


class _GatheredTable:
    """Parts of one table, in order, with the same columns: what the parts hold is never there twice. rows: the maximum
    that there can be; memory is taken for those that come."""

    def __init__(self, rows: int) -> None:
        self._capacity = rows
        self.rows = 0
        self._columns: dict[str, _GatheredColumn] = {}

    def add(self, part: pd.DataFrame) -> None:
        end = self.rows + len(part)
        for name in part:
            column = self._columns.get(str(name))
            if column is None:
                column = self._columns[str(name)] = _GatheredColumn(self._capacity, part[name].array)
            column.put(part[name].array, self.rows, end)
        self.rows = end

    def table(self) -> pd.DataFrame:
        """Return all rows that were added; at least one part must have been."""
        columns = {name: column.until(self.rows) for name, column in self._columns.items()}
        return pd.DataFrame(columns, copy=False)


class _GatheredColumn:
    def __init__(self, rows: int, first: Any) -> None:
        self._dtype = first.dtype
        self._categories = first.categories if isinstance(first, pd.Categorical) else None
        # Pages that are not written to take no memory.
        self._values = np.empty(rows, _plain(first)[0].dtype)
        self._missing = np.empty(rows, np.bool_) if isinstance(first, pd.arrays.IntegerArray) else None

    def put(self, part: Any, begin: int, end: int) -> None:
        if self._categories is not None and not self._categories.equals(part.categories):
            # A kind of event that this version does not know came in a later part only.
            self._categories = self._categories.append(part.categories.difference(self._categories, sort=False))
            part = part.set_categories(self._categories)
        values, missing = _plain(part)
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


def _plain(part: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return the values of a column as numpy has them, and which are missing, where its type can say so."""
    if isinstance(part, pd.Categorical):
        return np.asarray(part.codes), None
    if isinstance(part, pd.arrays.IntegerArray):
        missing = np.asarray(part.isna())
        return part.to_numpy(dtype=part.dtype.type, na_value=0), missing
    return np.asarray(part), None
