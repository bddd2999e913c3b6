"""The programs that tools/bench/long_runs measures, each in a process of its own: a JSON object a line.

long_runs_worker.py soak|stacks TRACE plain|unbounded|bounded COUNT MAX_BYTES
long_runs_worker.py verdict TRACE
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import pytorch_alloctrace as alloctrace

ROWS = 10
WAYS = 10
DEPTH = 6
"""Of the tree of calls: with so many ways at each, a million stacks of 8 frames, and 2.1 million frames."""


def memory(name: str = "RssAnon") -> int:
    """Bytes of this process, from the system: RssAnon, those that are no file's; VmHWM, the most there was of all."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"the system does not say {name}")


def taken(path: Path) -> int:
    """Bytes of all files of a recording."""
    total = 0
    for suffix in ("", ".spool", ".compaction"):
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"{path}{suffix}")
            total += max(found.st_size, 512 * found.st_blocks)
    return total


def recording(path: Path, mode: str, bound: int) -> contextlib.AbstractContextManager[Any]:
    if mode == "plain":
        return contextlib.nullcontext()
    return alloctrace.enable(path, devices=("cpu",), overwrite=True, max_bytes=bound if mode == "bounded" else None)


def temporary(number: int) -> None:
    torch.empty(100 + number % 5003)


def kept(number: int) -> torch.Tensor:
    return torch.empty(64)  # LEAK


def soak(path: Path, mode: str, events: int, bound: int) -> None:
    """Pairs of allocation and free, steps, and a block that stays every 20 of these. Nanoseconds are of a processor: of
    the program's thread alone, and with the recorder's threads.
    """
    leak: list[torch.Tensor] = []
    with recording(path, mode, bound) as session:
        begun = time.perf_counter()
        row_thread, row_process = time.thread_time_ns(), time.process_time_ns()
        done = row_done = rounds = 0
        while done < events:
            for number in range(1000):
                temporary(number * 7919)
            if rounds % 20 == 0:
                leak.append(kept(done))
            rounds += 1
            done += 2001 + (rounds % 20 == 1)
            if mode != "plain":
                alloctrace.step()
            if (done - row_done) * ROWS >= events or done >= events:
                thread, process = time.thread_time_ns() - row_thread, time.process_time_ns() - row_process
                seconds = round(time.perf_counter() - begun, 1)
                entry = {"events": done, "seconds": seconds, "files": taken(path), "memory": memory()}
                entry["ns_per_event"] = round(thread / (done - row_done), 1)
                entry["ns_with_threads"] = round(process / (done - row_done), 1)
                if mode != "plain":
                    entry["lost"] = sum(session._recorder.counts()[1])  # status() would read the trace beside it
                print(json.dumps(entry), flush=True)
                row_thread, row_process, row_done = time.thread_time_ns(), time.process_time_ns(), done


def stacks(path: Path, mode: str, count: int, bound: int) -> None:
    lines = ["def way(depth, number):", "    if depth == 0: return torch.empty(9)"]
    lines += [f"    if number % {WAYS} == {way}: return way(depth - 1, number // {WAYS})" for way in range(WAYS)]
    made: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(lines), "tree.py", "exec"), made)
    with recording(path, mode, bound) as session:
        for _ in range(2):
            for number in range(count):
                made["way"](DEPTH, number)
        if mode != "plain":
            session.flush()
        entry = {"memory": memory(), "peak": memory("VmHWM"), "stacks": count, "cut_stacks": 0}
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
