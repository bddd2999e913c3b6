"""Programs that are recorded with a size limit (MiB) and allocate as fast as they can.

size_limit_programs.py run EVENTS LIMIT       # writes run.alloctrace and witness.json in the working directory
size_limit_programs.py kill KILLS SEED LIMIT  # writes kill-N.alloctrace of killed processes, and witness.json
size_limit_programs.py live BLOCKS LIMIT      # keeps the blocks live
size_limit_programs.py stacks STACKS LIMIT    # allocates under new stacks, a quarter of them in new code
size_limit_programs.py keep TIME PACE LIMIT   # records with keep=TIME until compacted; PACE allocations at a time
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import options, session

SUFFIXES = ("", ".spool", ".compaction", ".unfinished", ".spool.unfinished")


def shrink_buffers(limit: int) -> None:
    """Shrink the recorder's buffers to fit a size limit in MiB."""
    session.WAIT_NS = 60 * 10**9  # on a busy machine the writer may start later than a hook would wait
    if limit < 64:
        options.MIN_MAX_BYTES = limit << 20
        session.SMALL_MAX_BYTES = 0
        session.RING_EVENTS, session.DEFINITION_BYTES = 1 << 14, 1 << 20


def sum_sizes(path: Path) -> int:
    """Return the total size of a recording's files, in bytes."""
    total = 0
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{path}{suffix}")
            total += max(status.st_size, 512 * status.st_blocks)
    return total


def allocate(kind: int) -> torch.Tensor:
    return torch.empty(100 + kind % 5003)


def allocate_leak(kind: int) -> torch.Tensor:
    return torch.empty(64)  # LEAK


def run(events: int, limit: int) -> None:
    path = Path("run.alloctrace")
    largest, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            largest[0] = max(largest[0], sum_sizes(path))
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    leak, compacted, last = [], 0, 0
    with alloctrace.enable(path, devices=("cpu",), max_bytes=limit << 20) as recording:
        watcher.start()
        alloctrace.status()
        steps = max(events // 2000, 1)
        for step in range(steps):
            for number in range(step, step + 1000):
                allocate(number * 7919)
            if step > steps // 10 and step % max(steps // 500, 1) == 0:
                leak.append(allocate_leak(step))
            alloctrace.step()
            inode = os.stat(path).st_ino
            compacted += last not in (0, inode)
            last = inode
        recording.flush()
        live, ends = leak[0].nbytes * len(leak), time.monotonic() + 60
        while (status := alloctrace.status()).get("cpu/requested_bytes") != live and time.monotonic() < ends:
            time.sleep(0.05)
        followed = {name: status.get(name) for name in ("cpu/requested_bytes", "steps")}
    is_over.set()
    watcher.join()
    witness = {"steps": steps, "leaked": len(leak), "largest": largest[0], "compacted": compacted, "followed": followed}
    Path("witness.json").write_text(json.dumps(witness))


def allocate_until_killed(witness: mmap.mmap, name: str, limit: int) -> None:
    alloctrace.enable(name, devices=("cpu",), max_bytes=limit << 20)
    counter = memoryview(witness).cast("Q")
    count = 0
    while True:
        allocate(count * 7919)
        count += 1
        counter[0] = count  # after the hook returned: a counted allocation must be in the trace


def kill(kills: int, seed: int, limit: int) -> None:
    random.seed(seed)
    results = []
    for number in range(kills):
        witness = mmap.mmap(-1, 4096)
        name = f"kill-{number}.alloctrace"
        child = os.fork()
        if child == 0:
            allocate_until_killed(witness, name, limit)

        def read_counter(witness: mmap.mmap = witness) -> int:
            return int.from_bytes(witness[:8], "little")

        # Kill every second child while it writes a compacted file, which takes some milliseconds; at once or a moment
        # later. Kill every second one of the others after a compaction.
        allocations = random.random() * 400_000
        during_compaction, after_compaction = number % 2 == 0, number % 4 == 3
        first = None
        while (
            read_counter() < allocations
            or (during_compaction and not os.path.exists(f"{name}.compaction"))
            or (after_compaction and first in (None, os.stat(name).st_ino))
        ):
            assert os.waitpid(child, os.WNOHANG)[0] == 0, "the child exited before it was killed"
            if first is None and os.path.exists(name):
                first = os.stat(name).st_ino
            time.sleep(0.0005)
        time.sleep(random.random() * (0.05 if not during_compaction else 0.01 if number > 0 else 0))
        was_compacting = os.path.exists(f"{name}.compaction")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        results.append([read_counter(), was_compacting, sum_sizes(Path(name))])
    Path("witness.json").write_text(json.dumps(results))


def live(blocks: int, limit: int) -> None:
    with alloctrace.enable("run.alloctrace", devices=("cpu",), max_bytes=limit << 20):
        tensors = []
        for number in range(blocks):
            tensors.append(allocate(0) if number % 16 == 0 else allocate_leak(number))
            allocate(number)
        Path("witness.json").write_text(json.dumps({"live": len(tensors), "bytes": sum_sizes(Path("run.alloctrace"))}))


WAYS = 16
TREE = ["def way(depth, number):", "    if depth == 0: return torch.empty(9)  # INNERMOST"]
TREE += [f"    if number % {WAYS} == {way}: return way(depth - 1, number // {WAYS})" for way in range(WAYS)]


def stacks(count: int, limit: int) -> None:
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(TREE), "tree.py", "exec"), namespace)
    with alloctrace.enable("run.alloctrace", devices=("cpu",), max_bytes=limit << 20):
        for number in range(count):
            namespace["way"](4, number)
            if number % 4 == 0:
                text = f"def made_{number}(): return torch.empty(5)" + f"\ndef other_{number}(): pass" * 3
                exec(compile(text, f"<made {number}>", "exec"), namespace)
                namespace.pop(f"made_{number}")()
        alloctrace.mark("a name that comes late")
    Path("witness.json").write_text(json.dumps({"tree": count, "made": (count + 3) // 4}))


def keep(keep_time: str, pace: int, limit: int) -> None:
    path = Path("run.alloctrace")
    with alloctrace.enable(path, devices=("cpu",), max_bytes=limit << 20, keep=keep_time):
        first, rounds = os.stat(path).st_ino, 0
        while os.stat(path).st_ino == first:
            for number in range(pace):
                allocate(number * 7919)
            time.sleep(0.001)
            rounds += 1
    Path("witness.json").write_text(json.dumps({"allocations": rounds * pace}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, *arguments = (int(value) if value.isdigit() else value for value in sys.argv[1:])
    shrink_buffers(arguments[-1])
    {"run": run, "kill": kill, "live": live, "stacks": stacks, "keep": keep}[name](*arguments)
