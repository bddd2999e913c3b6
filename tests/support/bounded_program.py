"""Programs that are recorded with a bound (MiB) and allocate as fast as they can.

bounded_program.py run EVENTS BOUND           # writes run.alloctrace and witness.json in the working directory
bounded_program.py kill KILLS SEED BOUND      # writes kill-N.alloctrace of killed processes, and witness.json
bounded_program.py live BLOCKS BOUND          # keeps the blocks live
bounded_program.py stacks STACKS BOUND        # allocates under new stacks, a quarter of them of new code
bounded_program.py keep TIME PACE BOUND       # ends with keep=TIME when compacted; PACE allocations at a time
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


def shrink(bound: int) -> None:
    """Make the recorder's own numbers as small as a bound in MiB needs."""
    session.WAIT_NS = 60 * 10**9  # on a busy machine the writer may start later than a hook would wait
    if bound < 64:
        options.MIN_MAX_BYTES = bound << 20
        session.SMALL_MAX_BYTES = 0
        session.RING_EVENTS, session.DEFINITION_BYTES = 1 << 14, 1 << 20


def taken(path: Path) -> int:
    """Return the bytes of all files of a recording."""
    total = 0
    for suffix in SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(f"{path}{suffix}")
            total += max(found.st_size, 512 * found.st_blocks)
    return total


def one_of(kind: int) -> torch.Tensor:
    return torch.empty(100 + kind % 5003)


def kept(kind: int) -> torch.Tensor:
    return torch.empty(64)  # LEAK


def run(events: int, bound: int) -> None:
    path = Path("run.alloctrace")
    largest, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            largest[0] = max(largest[0], taken(path))
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    leak, compacted, last = [], 0, 0
    with alloctrace.enable(path, devices=("cpu",), max_bytes=bound << 20) as recording:
        watcher.start()
        alloctrace.status()
        steps = max(events // 2000, 1)
        for step in range(steps):
            for number in range(step, step + 1000):
                one_of(number * 7919)
            if step > steps // 10 and step % max(steps // 500, 1) == 0:
                leak.append(kept(step))
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
    witness = {"steps": steps, "kept": len(leak), "largest": largest[0], "compacted": compacted, "followed": followed}
    Path("witness.json").write_text(json.dumps(witness))


def victim(witness: mmap.mmap, name: str, bound: int) -> None:
    alloctrace.enable(name, devices=("cpu",), max_bytes=bound << 20)
    counter = memoryview(witness).cast("Q")
    count = 0
    while True:
        one_of(count * 7919)
        count += 1
        counter[0] = count  # after the hook has returned: what is counted here must be in the trace


def kill(kills: int, seed: int, bound: int) -> None:
    random.seed(seed)
    results = []
    for number in range(kills):
        witness = mmap.mmap(-1, 4096)
        name = f"kill-{number}.alloctrace"
        child = os.fork()
        if child == 0:
            victim(witness, name, bound)

        def counted(witness: mmap.mmap = witness) -> int:
            return int.from_bytes(witness[:8], "little")

        # Every second one while a compacted file is being written, which takes some milliseconds: at once or a moment
        # later. Of the others, every second one after a file was compacted.
        allocations = random.random() * 400_000
        in_folding, after_folding = number % 2 == 0, number % 4 == 3
        first = None
        while (
            counted() < allocations
            or (in_folding and not os.path.exists(f"{name}.compaction"))
            or (after_folding and first in (None, os.stat(name).st_ino))
        ):
            assert os.waitpid(child, os.WNOHANG)[0] == 0, "the victim died by itself"
            if first is None and os.path.exists(name):
                first = os.stat(name).st_ino
            time.sleep(0.0005)
        time.sleep(random.random() * (0.05 if not in_folding else 0.01 if number > 0 else 0))
        was_folding = os.path.exists(f"{name}.compaction")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        results.append([counted(), was_folding, taken(Path(name))])
    Path("witness.json").write_text(json.dumps(results))


def live(blocks: int, bound: int) -> None:
    with alloctrace.enable("run.alloctrace", devices=("cpu",), max_bytes=bound << 20):
        held = []
        for number in range(blocks):
            held.append(one_of(0) if number % 16 == 0 else kept(number))
            one_of(number)
        Path("witness.json").write_text(json.dumps({"live": len(held), "taken": taken(Path("run.alloctrace"))}))


WAYS = 16
TREE = ["def way(depth, number):", "    if depth == 0: return torch.empty(9)  # INNERMOST"]
TREE += [f"    if number % {WAYS} == {way}: return way(depth - 1, number // {WAYS})" for way in range(WAYS)]


def stacks(count: int, bound: int) -> None:
    made: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join(TREE), "tree.py", "exec"), made)
    with alloctrace.enable("run.alloctrace", devices=("cpu",), max_bytes=bound << 20):
        for number in range(count):
            made["way"](4, number)
            if number % 4 == 0:
                text = f"def made_{number}(): return torch.empty(5)" + f"\ndef other_{number}(): pass" * 3
                exec(compile(text, f"<made {number}>", "exec"), made)
                made.pop(f"made_{number}")()
        alloctrace.mark("a name that comes late")
    Path("witness.json").write_text(json.dumps({"tree": count, "made": (count + 3) // 4}))


def keep(kept_time: str, pace: int, bound: int) -> None:
    path = Path("run.alloctrace")
    with alloctrace.enable(path, devices=("cpu",), max_bytes=bound << 20, keep=kept_time):
        first, rounds = os.stat(path).st_ino, 0
        while os.stat(path).st_ino == first:
            for number in range(pace):
                one_of(number * 7919)
            time.sleep(0.001)
            rounds += 1
    Path("witness.json").write_text(json.dumps({"allocations": rounds * pace}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    name, *arguments = (int(word) if word.isdigit() else word for word in sys.argv[1:])
    shrink(arguments[-1])
    {"run": run, "kill": kill, "live": live, "stacks": stacks, "keep": keep}[name](*arguments)
