"""Programs that tools/bench/long_runs measures, each in a separate process. Each prints a JSON object per line.

long_runs_worker.py soak|stacks TRACE plain|unbounded|bounded COUNT MAX_BYTES
long_runs_worker.py verdict TRACE
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import pytorch_alloctrace as alloctrace

ROWS = 10
WAYS = 10
DEPTH = 6
"""Depth of the call tree: with WAYS branches per call, a million stacks of 8 frames, and 2.1 million frames."""


def memory_bytes(name: str = "RssAnon") -> int:
    """Return a memory size of this process: RssAnon (anonymous memory) or VmHWM (peak resident memory)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"/proc/self/status has no {name}")


def file_bytes(path: Path) -> int:
    """Return the total size of a recording's files."""
    total = 0
    for suffix in ("", ".spool", ".compaction"):
        with contextlib.suppress(FileNotFoundError):
            status = Path(f"{path}{suffix}").stat()
            total += max(status.st_size, 512 * status.st_blocks)
    return total


def start_recording(path: Path, mode: str, max_bytes: int) -> contextlib.AbstractContextManager[Any]:
    if mode == "plain":
        return contextlib.nullcontext()
    limit = max_bytes if mode == "bounded" else None
    return alloctrace.enable(path, devices=("cpu",), overwrite=True, max_bytes=limit)


def allocate_temporary(number: int) -> None:
    torch.empty(100 + number % 5003)


def allocate_leak(number: int) -> torch.Tensor:
    return torch.empty(64)  # LEAK


def soak(path: Path, mode: str, events: int, max_bytes: int) -> None:
    """Allocate and free in steps, leak a block every 20 steps, and print processor time per event, by row."""
    leak: list[torch.Tensor] = []
    with start_recording(path, mode, max_bytes) as session:
        begin = time.perf_counter()
        row_thread, row_process = time.thread_time_ns(), time.process_time_ns()
        event_count = row_start = rounds = 0
        while event_count < events:
            for number in range(1000):
                allocate_temporary(number * 7919)
            if rounds % 20 == 0:
                leak.append(allocate_leak(event_count))
            rounds += 1
            event_count += 2001 + (rounds % 20 == 1)
            if mode != "plain":
                alloctrace.step()
            if (event_count - row_start) * ROWS >= events or event_count >= events:
                thread, process = time.thread_time_ns() - row_thread, time.process_time_ns() - row_process
                seconds = round(time.perf_counter() - begin, 1)
                entry = {"events": event_count, "seconds": seconds, "files": file_bytes(path), "memory": memory_bytes()}
                entry["ns_per_event"] = round(thread / (event_count - row_start), 1)
                entry["ns_with_threads"] = round(process / (event_count - row_start), 1)
                if mode != "plain":
                    entry["lost"] = sum(session._recorder.counts()[1])  # status() would read the trace meanwhile
                print(json.dumps(entry), flush=True)
                row_thread, row_process, row_start = time.thread_time_ns(), time.process_time_ns(), event_count


def stacks(path: Path, mode: str, count: int, max_bytes: int) -> None:
    lines = ["def way(depth, number):", "    if depth == 0: return torch.empty(9)"]
    lines += [f"    if number % {WAYS} == {way}: return way(depth - 1, number // {WAYS})" for way in range(WAYS)]
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(lines), "tree.py", "exec"), namespace)
    with start_recording(path, mode, max_bytes) as session:
        for _ in range(2):
            for number in range(count):
                namespace["way"](DEPTH, number)
        if mode != "plain":
            session.flush()
        entry = {"memory": memory_bytes(), "peak": memory_bytes("VmHWM"), "stacks": count, "cut_stacks": 0}
    if mode != "plain":
        entry["cut_stacks"] = alloctrace.load(path).integrity.unknown_stacks
    print(json.dumps(entry), flush=True)


def verdict(path: Path) -> None:
    trace = alloctrace.load(path)
    integrity = trace.integrity
    print(
        json.dumps({
            "leaks": [{"line": leak.line.line, "blocks": leak.blocks} for leak in trace.leaks().leaks],
            "events_in_all": trace._recorded.end_seq,
            "compacted_until": integrity.compacted_until,
            "lost": integrity.lost,
            "bound_exceeded": integrity.bound_exceeded,
            "bytes": path.stat().st_size,
        }),
        flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "verdict":
        verdict(Path(sys.argv[2]))
    else:
        {"soak": soak, "stacks": stacks}[sys.argv[1]](
            Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
        )
