"""Export to the pickle of `torch.cuda.memory._dump_snapshot`: segments and blocks at a position, and earlier events."""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

import numpy as np
import pandas as pd

from ...errors import TraceError
from ...reading import event_tables, tables
from ...reading.frees import devices_with_two_events, were_not_requested
from ...reading.names import KINDS
from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ..tables import rows
from .stacks import truncate_stack

MAX_EVENTS = 600_000
"""Default maximum number of exported events, the last ones. The page of memory_viz hides earlier ones."""

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
    most_events: int = MAX_EVENTS,
) -> bytes:
    """Return the pickle of the state at `at` (default: the end of the range) and the last events of the range.

    Raises TraceError for a trace without a CUDA device, of which memory_viz would show nothing.
    """
    selected = trace.devices if device is None else [trace.named_device(device) or device]
    if all(_cuda_index(name) is None for name in selected):
        raise TraceError(
            f"memory_viz shows CUDA devices only, and the trace has {', '.join(selected) or 'no device'}: export "
            "speedscope or perfetto instead"
        )
    position: Position = at if at is not None else until if until is not None else "end"
    frames = _Frames(trace)
    snapshot = {
        "segments": _segments(trace, position, device, frames),
        "device_traces": _events(trace, since, position, device, frames, most_events),
        "allocator_settings": {},
        "external_annotations": [],
    }
    return pickle.dumps(snapshot, protocol=4)


class _Frames:
    """Frames of stacks, innermost first. Equal stacks share a list, equal frames a dictionary: a smaller pickle."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._stacks: dict[int, list[dict[str, Any]]] = {}
        self._frames: dict[tuple[str, str, int], dict[str, Any]] = {}

    def list_frames(self, stack: int) -> list[dict[str, Any]]:
        frames = self._stacks.get(stack)
        if frames is None:
            recorded = truncate_stack(self._trace.frames(stack), len(self._trace.stacks)) or (
                [self._trace.stacks.frame(stack)] if stack else []
            )
            keys = [(frame.function, frame.filename, frame.line) for frame in recorded]
            frames = self._stacks[stack] = [
                self._frames.setdefault(key, {"name": key[0], "filename": key[1], "line": key[2]}) for key in keys
            ]
        return frames


def _cuda_index(device: str) -> int | None:
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
                "frames": [] if is_free else frames.list_frames(int(row["stack_id"])),
            }
        )
    return [
        {
            "device": _cuda_index(row["device"]),
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
        if _cuda_index(row["device"]) is not None
    ]


def _events(
    trace: RecordedTrace, since: Position | None, until: Position, device: str | None, frames: _Frames, max_events: int
) -> list[list[dict[str, Any]]]:
    events: list[list[dict[str, Any]]] = []
    for row in rows(_last_events(trace, since, until, device, max_events)):
        index = _cuda_index(row["device"])
        if index is None:
            continue
        while len(events) <= index:
            events.append([])
        events[index].append(_make_event(row, frames))
    return events


def _last_events(
    trace: RecordedTrace, since: Position | None, until: Position, device: str | None, max_events: int
) -> pd.DataFrame:
    selected_device = trace.named_device(device)
    kinds = [kind for kind in _ACTIONS if trace.kind_counts.get(kind)]
    # Chunks are dropped as soon as later ones suffice: memory use must not grow with the size of the trace.
    chunks: deque[pd.DataFrame] = deque()
    count = 0
    for chunk in event_tables.iter_events(trace, since=since, until=until, columns=_COLUMNS, kinds=kinds):
        chunks.append(chunk if selected_device is None else chunk[chunk["device"] == selected_device])
        count += len(chunks[-1])
        while count - len(chunks[0]) >= max_events:
            count -= len(chunks.popleft())
    if not chunks:
        return pd.DataFrame()
    return _split_frees(trace, pd.concat(chunks, ignore_index=True).tail(max_events)).tail(max_events)


def _split_frees(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    """Split frees of the caching allocator into request and completion, as torch reports them, with equal `seq`."""
    events = events.assign(kind=events["kind"].astype(str), device=events["device"].astype(str))
    kinds = np.array([KINDS.index(kind) for kind in events["kind"]], np.int64)
    seq, address = events["seq"].to_numpy(np.int64), events["address"].to_numpy(np.int64)
    lacks_request = were_not_requested(trace, seq, kinds, events["device"].to_numpy(object), address)
    lacks_request &= events["device"].isin(devices_with_two_events(trace)).to_numpy(bool)
    requests = events[lacks_request].assign(kind="free_requested")
    return pd.concat([requests, events], ignore_index=True).sort_values("seq", kind="stable", ignore_index=True)


def _make_event(row: dict[str, Any], frames: _Frames) -> dict[str, Any]:
    # The address of a failed allocation is the number of bytes that the driver had free.
    address_key = "device_free" if row["kind"] == "oom" else "addr"
    return {
        "action": str(row["kind"]),
        address_key: int(row["address"]),
        "size": int(row["requested_bytes"]),
        "stream": int(row["stream"]),
        "time_us": int(row["time_ns"]) // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": frames.list_frames(int(row["stack_id"])),
    }
