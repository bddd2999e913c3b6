"""Simultaneous recordings of programs by this project and by torch's allocator history, and their comparison."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from frees import split_frees

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.names import KINDS
from pytorch_alloctrace.trace import EVENT_COLUMNS

TORCH_KINDS = KINDS[1:10]
"""Kinds of torch's trace entries that have a name here; all others are "raw"."""

Stack = tuple[tuple[str, str, int], ...]


class History:
    """torch's own history of allocator events. Reading the history adds a snapshot event."""

    def __init__(self, stacks: bool) -> None:
        import torch

        torch.cuda.init()  # otherwise the call below reaches no device
        self._memory = torch.cuda.memory
        self._memory._record_memory_history(None)  # clears the history
        options = {"context": "all" if stacks else None, "stacks": "python", "max_entries": sys.maxsize}
        self._memory._record_memory_history("all", **options)

    def write(self, path: Path) -> None:
        import torch

        stacks: dict[Stack, int] = {(): 0}
        rows: list[tuple[int, ...]] = []
        for device, entries in enumerate(torch._C._cuda_memorySnapshot(None)["device_traces"]):
            for entry in entries:
                action = entry["action"]
                kind = KINDS.index(action if action in TORCH_KINDS else "raw")
                address = entry["device_free"] if action == "oom" else entry["addr"]
                frames = tuple((frame["name"], frame["filename"], frame["line"]) for frame in entry.get("frames", ()))
                stack = stacks.setdefault(frames, len(stacks))
                pool = entry.get("pool_id", (-1, -1))
                rows.append((device, kind, address, entry["size"], entry["stream"], *pool, stack))
        self._memory._record_memory_history(None)
        with open(path, "wb") as file:
            np.savez(file, rows=np.array(rows, dtype=np.int64).reshape(-1, 8), stacks=json.dumps(list(stacks)))


def read_history(path: Path) -> tuple[pd.DataFrame, list[Stack]]:
    """Return one row for each event, device by device, and the stacks. A pool that torch does not report is -1, -1."""
    with np.load(path) as saved:
        rows, texts = saved["rows"], json.loads(str(saved["stacks"]))
    names = ["device", "kind", "address", "requested_bytes", "stream", "pool_first", "pool_second", "stack_id"]
    return pd.DataFrame(rows, columns=names), [tuple((*frame,) for frame in stack) for stack in texts]


def tracked_events(trace: alloctrace.Trace, device_count: int, since: Any = None, until: Any = None) -> pd.DataFrame:
    """Return the trace's events of the kinds in torch's history, in the same columns, with sequence numbers."""
    events = split_frees(trace.events(columns=(*EVENT_COLUMNS, "node_seq")))
    events = events[events["seq"].isin(trace.events(since=since, until=until, columns=("seq",))["seq"])]
    is_cuda = events["device"].astype(str).str.startswith("cuda")
    chosen = events[is_cuda & events["kind"].isin((*TORCH_KINDS, "raw"))]
    pools = np.array([*chosen["pool"]], dtype=np.int64).reshape(-1, 2)
    table = (
        chosen[["address", "requested_bytes", "stream", "stack_id"]]
        .astype(np.int64)
        .assign(
            device=chosen["device"].astype(str).str.removeprefix("cuda:").astype(np.int64),
            kind=pd.Index(KINDS).get_indexer(pd.Index(chosen["kind"])).astype(np.int64),
            pool_first=pools[:, 0],
            pool_second=pools[:, 1],
            seq=chosen["seq"],
        )
    )
    # torch writes device 0 into the snapshot entries of all devices; each snapshot queries the devices in order.
    snapshots = table.index[table["kind"] == KINDS.index("snapshot")]
    table.loc[snapshots, "device"] = np.arange(len(snapshots)) % device_count
    return table


@dataclass
class Comparison:
    name: str
    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return f"{self.name}: {self.events} events compared ({kinds}), {len(self.differences)} differences"


def compare_sequences(name: str, ours: pd.DataFrame, reported: pd.DataFrame) -> Comparison:
    """Compare kind, address, size, stream, and the pool if torch reports it, event by event on each device."""
    result = Comparison(name)
    columns = ["kind", "address", "requested_bytes", "stream"]
    if (reported["pool_first"] >= 0).any():
        columns += ["pool_first", "pool_second"]
    for device in sorted({*ours["device"], *reported["device"]}):
        actual = ours.loc[ours["device"] == device, columns].to_numpy()
        expected = reported.loc[reported["device"] == device, columns].to_numpy()
        common = min(len(actual), len(expected))
        if len(actual) != len(expected):
            result.differences.append(f"cuda:{device}: {len(actual)} events recorded, torch has {len(expected)}")
        for index in np.flatnonzero((actual[:common] != expected[:common]).any(axis=1)):
            result.differences.append(f"cuda:{device}: event {index} is {actual[index]}, torch has {expected[index]}")
        result.events += common
        result.kinds.update(KINDS[kind] for kind in expected[:, 0])
    return result


def compare_stacks(
    name: str, ours: pd.DataFrame, trace: alloctrace.Trace, reported: pd.DataFrame, stacks: list[Stack]
) -> Comparison:
    """Compare the stacks of equal sequences (see compare_sequences) frame by frame."""
    result = Comparison(name)
    frames_of = {
        stack: tuple((frame.function.rpartition(".")[2], frame.filename, frame.line) for frame in trace.frames(stack))
        for stack in ours["stack_id"].unique()
    }
    for device in sorted({*reported["device"]}):
        our_rows, torch_rows = ours[ours["device"] == device], reported[reported["device"] == device]
        for kind, seq, stack, expected in zip(
            our_rows["kind"], our_rows["seq"], our_rows["stack_id"], torch_rows["stack_id"], strict=True
        ):
            if KINDS[kind] == "snapshot":  # not caused by an allocation: torch records no stack
                continue
            result.events += 1
            result.kinds["with frames" if stacks[expected] else "without"] += 1
            if frames_of[stack] != stacks[expected]:
                result.differences.append(
                    f"cuda:{device}: {KINDS[kind]}, number {seq}: {frames_of[stack]}, torch has {stacks[expected]}"
                )
    return result


def record(folder: Path, name: str, run: Callable[[], None], stacks: bool) -> None:
    """Record the events from mark "begin" to mark "end" into NAME.alloctrace, and torch's history into NAME.npz."""
    import torch

    alloctrace.enable(folder / f"{name}.alloctrace", devices=("cuda",))
    history = History(stacks)
    alloctrace.mark("begin")
    run()
    gc.collect()
    torch.cuda.empty_cache()  # so that no events fall between two recordings of one process
    torch.cuda.synchronize()
    alloctrace.mark("end")
    history.write(folder / f"{name}.npz")
    alloctrace.disable()


@dataclass(frozen=True)
class Recorded:
    """The trace and torch's history that `record` has written."""

    trace: alloctrace.Trace
    ours: pd.DataFrame
    reported: pd.DataFrame
    stacks: list[Stack]


def read_recorded(folder: Path, name: str, device_count: int) -> Recorded:
    trace = alloctrace.load(folder / f"{name}.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0
    ours = tracked_events(trace, device_count, since="mark:begin", until="mark:end")
    return Recorded(trace, ours, *read_history(folder / f"{name}.npz"))
