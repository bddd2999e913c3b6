"""DataFrames of the `Trace` methods of the same names. `RecordedTrace` has the same data as numpy columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from .child_traces import list_children
from .event_tables import node_type_names
from .names import ROLES, ROLES_SHOWN, device_name
from .positions import Position
from .recorded import RecordedTrace
from .replay import BLOCK_COLUMNS, ENDS, LIVE_COLUMNS, MEASURES, NEED_SEGMENTS, SEGMENT_COLUMNS, STACK_COLUMNS
from .sites import BLOCK_SITE_COLUMNS, StackIndex, describe_stacks
from .table import BLOCK_STATES, Table
from .timeline import intervals

TEXT = pd.Series([""]).dtype
"""Dtype of text: pandas' string dtype since pandas 3, object before."""
ROLE = pd.CategoricalDtype([*ROLES])
HOLDER_COLUMNS = (
    *("seq", "holder", "path", "filename", "line", "blocks", "requested_bytes", "is_garbage", "containers"),
    *("nodes", "has_all_nodes", "foreign_bytes", "name", "scope", "function", "through"),
)
STACK_TOTALS = tuple(name for name in STACK_COLUMNS if name != "live_block_bytes")
_NOT_INT64: dict[str, Any] = {
    **dict.fromkeys(("device", "segment_type", "node_type", "name", "kind", "uuid", "pci_address"), TEXT),
    **dict.fromkeys(("site", "filename", "function", "command", "trace"), TEXT),
    **dict.fromkeys(("backward", "user", "is_expandable", "older", "role_is_exact"), np.bool_),
    **dict.fromkeys(("source", "segment_pool_id"), object),
    "state": pd.CategoricalDtype([*BLOCK_STATES]),
    "role": ROLE,
    "share": np.float64,
    "external_fragmentation": "Float64",
}
"""Dtypes by column name, for all tables; other columns are int64."""


def no_rows(columns: Iterable[str], **dtypes: Any) -> pd.DataFrame:
    """Return an empty table with these columns. dtypes: exceptions from the usual dtype of a column."""
    return _no_rows(tuple(columns), tuple(dtypes.items())).copy()


@functools.cache
def _no_rows(columns: tuple[str, ...], dtypes: tuple[tuple[str, Any], ...]) -> pd.DataFrame:
    column_dtypes = {name: dict(dtypes).get(name, _NOT_INT64.get(name, np.int64)) for name in columns}
    return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in column_dtypes.items()})


def live(trace: RecordedTrace, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
    blocks = _concat_devices(trace, trace.replay.live, at, device, LIVE_COLUMNS, node_type=np.int64, role=np.int8)
    if trace.named_device(device) is None:
        blocks = blocks.sort_values("alloc_seq", ignore_index=True, kind="stable")
    del blocks["block_bytes"]  # a column of `Trace.blocks` only
    table = _describe_blocks(trace, blocks, np.zeros(len(blocks), np.bool_))
    table = table.assign(**site_columns(trace.stacks, blocks["stack_id"].to_numpy()))
    names = trace.block_names(
        blocks["address"].tolist(), blocks["alloc_seq"].tolist(), trace.first_event_after(at, device)
    )
    return table.assign(name=pd.Series(names, index=blocks.index, dtype=TEXT))


def blocks(trace: RecordedTrace, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
    table = _concat_devices(
        trace, trace.replay.blocks, at, device, BLOCK_COLUMNS, node_type=np.int64, role=np.int8, state=np.int8
    )
    is_free = (table["state"] == 0).to_numpy(bool)
    table["state"] = pd.Categorical.from_codes(table["state"], dtype=_NOT_INT64["state"])
    table = _describe_blocks(trace, table, is_free)
    return table.assign(**site_columns(trace.stacks, table["stack_id"].to_numpy(), unknown=is_free))


def segments(trace: RecordedTrace, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
    columns = (*SEGMENT_COLUMNS, "is_large", "stream", "segment_pool_id")
    table = _concat_devices(trace, trace.replay.segments, at, device, columns)
    sizes = np.where(table["is_large"].to_numpy(bool), "large", "small").astype(object)
    table["segment_type"] = pd.Series(sizes, index=table.index, dtype=TEXT)
    expandable = table.pop("is_expandable")
    order = ["device", *SEGMENT_COLUMNS[:-1], "stream", "segment_type", "segment_pool_id"]
    return table[order].assign(is_expandable=expandable)


def named_sites(stacks: StackIndex, table: Table, by: str) -> pd.DataFrame:
    """Return a table by site (as of `group_stacks`) with NAME_COLUMNS before its own columns."""
    names = describe_stacks(stacks, table["stack_id"], by)
    return Table({**names.columns, **table.columns}).to_frame()


def stack_totals(trace: RecordedTrace, at: Position = "end", *, device: str | None = None) -> pd.DataFrame:
    return trace.stack_totals(at, device=device).select(*STACK_TOTALS).to_frame()


def steps(trace: RecordedTrace, *, device: str | None = None) -> pd.DataFrame:
    return trace.steps(device).to_frame()


def timeline(trace: RecordedTrace, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
    intervals(trace.begin_ns, trace.end_ns, points)  # raises ValueError
    device = trace.named_device(device)
    names = [name for name in trace.replay.devices if device in (None, name)]
    frames = []
    for name in names:
        frame = trace.timeline(points, name).to_frame()
        frame.insert(0, "device", pd.Series([name] * len(frame), dtype=TEXT))
        frames.append(frame)
    if frames:
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    measures = [f"{measure}{end}" for measure in MEASURES for end in ENDS]
    unknown = {f"{measure}{end}": "Int64" for measure in NEED_SEGMENTS for end in ENDS}
    columns = ("device", "time_ns", *measures, "external_fragmentation", "outside_bytes", "blocks", "seq")
    return no_rows(columns, **unknown, outside_bytes="Int64")


def role_timeline(trace: RecordedTrace, points: int = 2000, *, device: str | None = None) -> pd.DataFrame:
    """Return `Trace.timeline` by role."""
    borders, ends = intervals(trace.begin_ns, trace.end_ns, points)
    device = trace.named_device(device)
    last = ends[1:] - 1
    tables = [
        pd.DataFrame({"device": name, "time_ns": borders[:-1], **{role: columns[role][last] for role in columns}})
        for name, columns in trace.role_timelines(int(ends[-1])).items()
        if device in (None, name)
    ]
    if trace.integrity.compacted_until:
        for table in tables:
            is_compacted = table["time_ns"] < trace.integrity.compacted_until_ns
            for role in ROLES_SHOWN:
                table[role] = table[role].astype("Int64").mask(is_compacted)
    return pd.concat(tables, ignore_index=True) if tables else no_rows(("device", "time_ns", *ROLES_SHOWN))


def driver_memory(trace: RecordedTrace, *, device: str | None = None) -> pd.DataFrame:
    return trace.driver_samples(trace.named_device(device)).to_frame()


def hardware(trace: RecordedTrace) -> pd.DataFrame:
    columns = ["device", "name", "total_bytes", "uuid", "pci_address"]
    rows = [
        (device_name(gpu.device_type, gpu.device_index), gpu.name, gpu.bytes, gpu.uuid, gpu.pci_address)
        for gpu in trace.reader.devices()
    ]
    return pd.DataFrame(rows, columns=columns) if rows else no_rows(columns)


def holders(trace: RecordedTrace) -> pd.DataFrame:
    table = no_rows(
        HOLDER_COLUMNS,
        containers=object,
        **dict.fromkeys(("holder", "path", "name", "scope", "function", "through"), TEXT),
        **dict.fromkeys(("is_garbage", "has_all_nodes"), np.bool_),
    )
    rows = [
        (
            *(held.event, held.holder, held.path, held.filename, held.line, held.count, held.bytes, held.is_garbage),
            *(held.containers, held.nodes, held.has_all_nodes, held.foreign_bytes),
            *(held.name, held.scope, held.function, held.through),
        )
        for held in trace.held
    ]
    return pd.DataFrame(rows, columns=table.columns).astype(table.dtypes.to_dict())


def threads(trace: RecordedTrace) -> pd.DataFrame:
    columns = ["thread", "native_id", "name", "autograd_id"]
    rows = [
        (number, thread.native_id, thread.python_name or thread.name, thread.autograd_id)
        for number, thread in enumerate(trace.reader.threads())
        if number  # 0 is no thread
    ]
    return pd.DataFrame(rows, columns=columns) if rows else no_rows(columns)


def children(trace: RecordedTrace) -> pd.DataFrame:
    columns = ["process", "parent_process", "command", "seq", "trace"]
    rows = [
        (child.process, child.parent_process, child.command, child.seq, child.trace) for child in list_children(trace)
    ]
    return pd.DataFrame(rows, columns=columns) if rows else no_rows(columns)


def site_columns(
    stacks: StackIndex, stack_ids: npt.NDArray[np.int64], unknown: npt.NDArray[np.bool_] | None = None
) -> dict[str, Any]:
    """Return BLOCK_SITE_COLUMNS of these stacks, missing where `unknown`. Categorical: strings take far more memory."""
    numbers, names = stacks.names_by_line
    rows = numbers[stack_ids]
    columns: dict[str, Any] = {}
    for column in BLOCK_SITE_COLUMNS:
        if column == "line":
            lines = names["line"][rows]
            columns[column] = lines if unknown is None else pd.arrays.IntegerArray(lines, unknown)
            continue
        codes, texts = pd.factorize(names[column])
        codes = codes[rows] if unknown is None else np.where(unknown, -1, codes[rows])
        categories = pd.Index(texts, dtype=TEXT)
        columns[column] = pd.Categorical.from_codes(codes, categories=categories).remove_unused_categories()
    return columns


def _concat_devices(
    trace: RecordedTrace,
    table_of: Callable[[int, str], Table],
    at: Position,
    device: str | None,
    columns: Sequence[str],
    **dtypes: Any,
) -> pd.DataFrame:
    """Return the tables of one device or all, joined in the order of type and index, with the column device."""
    until, device = trace.first_event_after(at, device), trace.named_device(device)
    timelines = trace.replay.devices
    in_order = sorted(timelines, key=lambda name: (timelines[name].device_type, timelines[name].device_index))
    frames = []
    for name in [device] if device else in_order:
        table = table_of(until, name)
        if len(table):
            values = {column: table[column] for column in columns}
            devices = pd.Series([name], dtype=TEXT).array.repeat(len(table))
            frames.append(pd.DataFrame({"device": devices, **values}, copy=False))
    if not frames:
        return no_rows(("device", *columns), **dtypes)
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def _describe_blocks(trace: RecordedTrace, table: pd.DataFrame, is_free: npt.NDArray[np.bool_]) -> pd.DataFrame:
    """Add role names, node types, steps. Allocation columns of blocks older than the recording become <NA>."""
    allocation_columns = [name for name in ("alloc_seq", "alloc_ns", "age_ns") if name in table]
    is_older = table.pop("older").to_numpy(bool)
    step = trace.positions.step_of(table["alloc_seq"].to_numpy(), unknown=is_free)
    columns: dict[str, Any] = {
        "role": pd.Categorical.from_codes(table["role"], dtype=ROLE),
        "node_type": node_type_names(trace, table["node_type"].to_numpy()),
        "step": pd.arrays.IntegerArray(step.data, np.ma.getmaskarray(step) | is_older),
    }
    columns |= {name: pd.arrays.IntegerArray(table[name].to_numpy(), is_older) for name in allocation_columns}
    return table.assign(**columns)
