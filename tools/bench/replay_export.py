"""A trace as the pickle that `torch.cuda.memory._dump_snapshot` writes, so that other tools can be given the very same
events. In plain Python: only for benchmarks, of a few million events."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytorch_alloctrace as alloctrace

ACTIONS = frozenset(("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "snapshot"))
STATES = ("inactive", "active_allocated", "active_pending_free")
COLUMNS = (*("seq", "time_ns", "kind", "device", "address", "nbytes", "stream", "stack_id"), "autograd_seq", "node_seq")


class Frames:
    """The frames of stacks as torch lists them: dictionaries, innermost first. Equal stacks share one list and equal
    frames one dictionary, as in torch's own pickles, which would be several times as large without."""

    def __init__(self, trace: alloctrace.Trace) -> None:
        self._trace = trace
        self._stacks: dict[int, list[dict[str, Any]]] = {}
        self._frames: dict[tuple[str, str, int], dict[str, Any]] = {}

    def of(self, stack: int) -> list[dict[str, Any]]:
        found = self._stacks.get(stack)
        if found is None:
            found = [self._frame(frame) for frame in self._trace.frames(stack)]
            self._stacks[stack] = found
        return found

    def _frame(self, frame: Any) -> dict[str, Any]:
        key = (frame.function, frame.filename, frame.line)
        return self._frames.setdefault(key, {"name": key[0], "filename": key[1], "line": key[2]})


def snapshot(trace: alloctrace.Trace) -> dict[str, Any]:
    """The events, and the segments as the trace's last account of the allocator's state has them."""
    frames = Frames(trace)
    device_traces: list[list[dict[str, Any]]] = []
    segments: list[dict[str, Any]] = []
    stack_of: dict[tuple[int, int], int] = {}
    for chunk in trace.iter_events(columns=COLUMNS):
        for _, time_ns, kind, name, address, size, stream, stack, sequence, node in chunk.itertuples(
            index=False, name=None
        ):
            if not name.startswith("cuda:"):
                continue
            device = int(name[5:])
            while len(device_traces) <= device:
                device_traces.append([])
            if kind in ACTIONS:
                if kind == "alloc":
                    stack_of[device, address] = stack
                device_traces[device].append(
                    {
                        "action": kind,
                        "addr": address,
                        "size": size,
                        "stream": stream,
                        "time_us": time_ns // 1000,
                        "compile_context": "N/A",
                        "user_metadata": "",
                        "frames": frames.of(stack),
                    }
                )
            elif kind == "state_segment":
                segments.append(_segment(device, address, size, stream, node))
            elif kind == "state_block":
                made_by = stack_of.get((device, address), 0) if node else 0
                _add_block(segments[-1], address, size, sequence, STATES[node], frames.of(made_by))
    return {
        "segments": segments,
        "device_traces": device_traces,
        "allocator_settings": {"expandable_segments": False, "garbage_collection_threshold": 0.0},
        "external_annotations": [],
    }


def _segment(device: int, address: int, size: int, stream: int, flags: int) -> dict[str, Any]:
    return {
        "device": device,
        "address": address,
        "total_size": size,
        "allocated_size": 0,
        "active_size": 0,
        "requested_size": 0,
        "stream": stream,
        "segment_type": "large" if flags & 1 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [],
    }


def _add_block(
    segment: dict[str, Any], address: int, size: int, requested: int, state: str, frames: list[dict[str, Any]]
) -> None:
    segment["blocks"].append(
        {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}
    )
    if state == "active_allocated":
        segment["allocated_size"] += size
    if state != "inactive":
        segment["active_size"] += size
        segment["requested_size"] += requested


def export(trace: alloctrace.Trace, path: Path) -> int:
    """Writes the pickle; returns how many events are in it."""
    data = snapshot(trace)
    with open(path, "wb") as file:
        pickle.dump(data, file, protocol=4)
    return sum(map(len, data["device_traces"]))
