"""A trace as the pickle that `torch.cuda.memory._dump_snapshot` writes: the segments and blocks at a moment, and the
events before it. Plain lists, dictionaries, strings and numbers."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import numpy as np
import pandas as pd

from ...reading import event_tables, tables
from ...reading.frees import devices_with_two_events, were_not_requested
from ...reading.names import KINDS
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ..tables import rows
from .stacks import whole_or_cut

MOST_EVENTS = 600_000
"""Of each export: the page hides what comes before the last so many."""

_ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("snapshot", "oom"),
)
_COLUMNS = ("seq", "time_ns", "kind", "device", "address", "requested_bytes", "stream", "pool", "stack_id")


def memory_viz(
    trace: RecordedTrace,
    at: Position | None,
    since: Position | None,
    until: Position | None,
    device: str | None,
    most_events: int = MOST_EVENTS,
) -> bytes:
    """The state is that at `at`, default at the end of the range; events are those in the range, the last ones of very
    many."""
    last: Position = at if at is not None else until if until is not None else "end"
    frames = _Frames(trace)
    data = {
        "segments": _segments(trace, last, device, frames),
        "device_traces": _events(trace, since, last, device, frames, most_events),
        "allocator_settings": {},
        "external_annotations": [],
    }
    return pickle.dumps(data, protocol=4)


class _Frames:
    """The frames of stacks as torch lists them, innermost first; equal stacks share one list, equal frames one
    dictionary."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._stacks: dict[int, list[dict[str, Any]]] = {}
        self._frames: dict[tuple[str, str, int], dict[str, Any]] = {}

    def of(self, stack: int) -> list[dict[str, Any]]:
        found = self._stacks.get(stack)
        if found is None:
            known = whole_or_cut(self._trace.frames(stack), len(self._trace.stacks)) or (
                [self._trace.stacks.frame(stack)] if stack else []
            )
            keys = [(frame.function, frame.filename, frame.line) for frame in known]
            found = self._stacks[stack] = [
                self._frames.setdefault(key, {"name": key[0], "filename": key[1], "line": key[2]}) for key in keys
            ]
        return found


def _index(device: str) -> int | None:
    kind, _, index = device.partition(":")
    return int(index) if kind == "cuda" and index.isdecimal() else None


def _segments(trace: RecordedTrace, at: Position, device: str | None, frames: _Frames) -> list[dict[str, Any]]:
    blocks = tables.blocks(trace, at, device=device)
    by_segment: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows(blocks[["device", "segment", "address", "block_bytes", "requested_bytes", "state", "stack_id"]]):
        is_free = row["state"] == "inactive"
        by_segment.setdefault((row["device"], int(row["segment"])), []).append(
            {
                "address": int(row["address"]),
                "size": int(row["block_bytes"]),
                "requested_size": int(row["requested_bytes"]),
                "state": str(row["state"]),
                "frames": [] if is_free else frames.of(int(row["stack_id"])),
            }
        )
    return [
        {
            "device": _index(row["device"]),
            "address": int(row["address"]),
            "total_size": int(row["total_bytes"]),
            "allocated_size": int(row["allocated_bytes"]),
            "active_size": int(row["active_bytes"]),
            "requested_size": int(row["requested_bytes"]),
            "stream": int(row["stream"]),
            "segment_type": row["segment_type"],
            "segment_pool_id": tuple(row["segment_pool_id"]),
            "is_expandable": bool(row["is_expandable"]),
            "frames": [],
            "blocks": by_segment.get((row["device"], int(row["address"])), []),
        }
        for row in rows(tables.segments(trace, at, device=device))
        if _index(row["device"]) is not None
    ]


def _events(
    trace: RecordedTrace, since: Position | None, until: Position, device: str | None, frames: _Frames, most: int
) -> list[list[dict[str, Any]]]:
    made: list[list[dict[str, Any]]] = []
    for row in rows(_last_events(trace, since, until, device, most)):
        index = _index(row["device"])
        if index is None:
            continue
        while len(made) <= index:
            made.append([])
        made[index].append(_event(row, frames))
    return made


def _last_events(
    trace: RecordedTrace, since: Position | None, until: Position, device: str | None, most: int
) -> pd.DataFrame:
    named = trace.named_device(device)
    kinds = [kind for kind in _ACTIONS if trace.kind_counts.get(kind)]
    # So that a trace of any size takes no more memory than the events that are kept.
    kept: deque[pd.DataFrame] = deque()
    count = 0
    for chunk in event_tables.iter_events(trace, since=since, until=until, columns=_COLUMNS, kinds=kinds):
        kept.append(chunk if named is None else chunk[chunk["device"] == named])
        count += len(kept[-1])
        while count - len(kept[0]) >= most:
            count -= len(kept.popleft())
    if not kept:
        return pd.DataFrame()
    return _in_two_events(trace, pd.concat(kept, ignore_index=True).tail(most)).tail(most)


def _in_two_events(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    """The same with both events of each free of the caching allocator, as torch reports them. What was one event has
    its number twice."""
    events = events.assign(kind=events["kind"].astype(str), device=events["device"].astype(str))
    kinds = np.array([KINDS.index(kind) for kind in events["kind"]], np.int64)
    seq, address = events["seq"].to_numpy(np.int64), events["address"].to_numpy(np.int64)
    is_alone = were_not_requested(trace, seq, kinds, events["device"].to_numpy(object), address)
    is_alone &= events["device"].isin(devices_with_two_events(trace)).to_numpy(bool)
    requests = events[is_alone].assign(kind="free_requested")
    return pd.concat([requests, events], ignore_index=True).sort_values("seq", kind="stable", ignore_index=True)


def _event(row: dict[str, Any], frames: _Frames) -> dict[str, Any]:
    # Of a failed allocation the address is what the driver had free.
    where = "device_free" if row["kind"] == "oom" else "addr"
    return {
        "action": str(row["kind"]),
        where: int(row["address"]),
        "size": int(row["requested_bytes"]),
        "stream": int(row["stream"]),
        "time_us": int(row["time_ns"]) // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": frames.of(int(row["stack_id"])),
    }
