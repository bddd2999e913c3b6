"""Programs that run out of memory, each for a different reason: the labelled corpus of the verdicts.

    python oom_programs.py TRACE_FOLDER CASE...

records the cases one after another, on three devices of 8 GiB. Comments mark the lines that the analysis must name: OOM
is the failed allocation, TOP holds the most bytes at that time, PIN pins the free blocks. Writes each error's message
from torch, and the segments of torch's snapshot after the error, to TRACE_FOLDER/CASE.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cuda_programs import give_back_everything, set_allocator_settings

import pytorch_alloctrace as alloctrace

MIB, GIB = 2**20, 2**30
PLAIN, SHARED, OTHER = "cuda:0", "cuda:1", "cuda:2"
"""Devices; on SHARED, another process uses 5 GiB."""

errors: list[dict[str, Any]] = []


def note(error: torch.OutOfMemoryError, device: str = PLAIN) -> None:
    """Record the error's message and torch's report of its free and reserved memory."""
    tried = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    assert tried is not None
    snapshot = [segment for segment in torch.cuda.memory_snapshot() if f"cuda:{segment['device']}" == device]
    free = [
        {"size": block["size"], "stream": segment["stream"], "pool": segment["segment_pool_id"]}
        for segment in snapshot
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    reserved = sum(segment["total_size"] for segment in snapshot)
    allowed = re.search(r"([\d.]+ \w+) allowed", str(error))
    reported = {"tried": tried[1], "allowed": allowed and allowed[1], "mem_get_info": torch.cuda.mem_get_info(device)}
    errors.append({**reported, "free": free, "reserved": reserved})


def cut_up(kept: list[torch.Tensor], count: int = 5, size: int = GIB) -> None:
    """Leave a small block in each of several large free segments."""
    fillers = []
    for _ in range(count):
        batch = torch.empty(size, dtype=torch.uint8, device=PLAIN)
        del batch
        kept.append(torch.empty(12 * MIB, dtype=torch.uint8, device=PLAIN))  # PIN
        fillers.append(torch.empty(size - 12 * MIB, dtype=torch.uint8, device=PLAIN))


def full_by_activations() -> None:
    weights = [torch.empty(4096, 4096, device=PLAIN, requires_grad=True) for _ in range(12)]
    alloctrace.step()
    x = torch.empty(65536, 4096, device=PLAIN)
    for weight in weights:
        x = (x @ weight).relu()  # OOM TOP


def full_by_weights() -> None:
    """Fill the device before the second step ends: no smaller batch would help."""
    weights = [torch.empty(600 * MIB, dtype=torch.uint8, device=PLAIN) for _ in range(11)]  # TOP
    for _ in range(4):
        alloctrace.step()
    weights.append(torch.empty(600 * MIB, dtype=torch.uint8, device=PLAIN))
    torch.empty(900 * MIB, dtype=torch.uint8, device=PLAIN)  # OOM
    weights.clear()


def full_by_a_leak() -> None:
    losses = []
    while True:
        batch = torch.empty(300 * MIB, dtype=torch.uint8, device=PLAIN)
        losses.append(torch.empty(600 * MIB, dtype=torch.uint8, device=PLAIN))  # OOM TOP
        del batch
        alloctrace.step()


def fragmented() -> None:
    kept: list[torch.Tensor] = []
    cut_up(kept)
    torch.empty(3 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def fragmented_with_max_split_size() -> None:
    set_allocator_settings("max_split_size_mb:900")
    kept: list[torch.Tensor] = []
    cut_up(kept, 12, 512 * MIB)
    torch.empty(2 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def cache_in_a_private_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        batch = torch.empty(5 * GIB, dtype=torch.uint8, device=PLAIN)
        del batch
    torch.empty(4 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def cache_in_a_pool_that_is_held() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        held = torch.empty(64 * MIB, dtype=torch.uint8, device=PLAIN)  # HOLDS
        batch = torch.empty(5 * GIB, dtype=torch.uint8, device=PLAIN)
        del batch
    torch.empty(4 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM
    del held


def cache_of_a_graph() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = torch.empty(5 * GIB, dtype=torch.uint8, device=PLAIN)
        batch.zero_()
        del batch
    torch.empty(4 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def cache_outside_of_the_pool_in_use() -> None:
    """Fail in a pool: while a pool is in use, torch does not release the cache of other pools before it fails."""
    batch = torch.empty(5 * GIB, dtype=torch.uint8, device=PLAIN)
    del batch
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.empty(4 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def cache_of_another_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        batch = torch.empty(5 * GIB, dtype=torch.uint8, device=PLAIN)
        del batch
        kept = torch.empty(12 * MIB, dtype=torch.uint8, device=PLAIN)  # PIN
    torch.empty(4 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM
    del kept


def another_process() -> None:
    kept = torch.empty(GIB, dtype=torch.uint8, device=SHARED)  # TOP
    torch.empty(2 * GIB, dtype=torch.uint8, device=SHARED)  # OOM
    del kept


def outside_of_pytorch() -> None:
    """Allocate as a library does that bypasses torch: the driver reports memory in use without a process."""
    Path(os.environ["SIMCUDA_NVML_EXTRA"]).write_text("4GiB@0")
    kept = torch.empty(GIB, dtype=torch.uint8, device=PLAIN)  # TOP
    torch.empty(3 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM
    del kept


def memory_fraction() -> None:
    torch.cuda.set_per_process_memory_fraction(0.5)
    kept = torch.empty(3 * GIB, dtype=torch.uint8, device=PLAIN)  # TOP
    torch.empty(2 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM
    del kept


def fragmented_below_a_memory_fraction() -> None:
    """Fail below the limit: torch has enough free memory, but not contiguous."""
    torch.cuda.set_per_process_memory_fraction(0.5)
    kept: list[torch.Tensor] = []
    cut_up(kept, 3)
    torch.empty(2 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def memory_fraction_set_late() -> None:
    """Set a limit below the earlier peak of the process."""
    batch = torch.empty(6 * GIB, dtype=torch.uint8, device=PLAIN)
    del batch
    torch.cuda.empty_cache()
    memory_fraction()


def larger_than_the_device() -> None:
    torch.empty(9 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM


def expandable_full() -> None:
    set_allocator_settings("expandable_segments:True")
    kept: list[torch.Tensor] = []
    while True:
        kept.append(torch.empty(701 * MIB, dtype=torch.uint8, device=PLAIN))  # OOM TOP


def expandable_without_a_free_unit() -> None:
    """Request the memory that is left, which is less than a mapping unit."""
    set_allocator_settings("expandable_segments:True")
    unit = 20 * MIB
    kept = torch.empty(torch.cuda.mem_get_info(PLAIN)[0] // unit * unit, dtype=torch.uint8, device=PLAIN)  # TOP
    left = torch.cuda.mem_get_info(PLAIN)[0]
    assert 10 * MIB <= left < unit, "a smaller request gets a segment of 20 MiB"
    torch.empty(left, dtype=torch.uint8, device=PLAIN)  # OOM
    del kept


def caught_and_recovered() -> None:
    kept = torch.empty(6 * GIB, dtype=torch.uint8, device=PLAIN)  # TOP
    while True:
        try:
            torch.empty(3 * GIB, dtype=torch.uint8, device=PLAIN)  # OOM
            break
        except torch.OutOfMemoryError as error:
            note(error)
            del kept


def one_of_two_devices() -> None:
    spare = torch.empty(GIB, dtype=torch.uint8, device=PLAIN)
    kept = torch.empty(7 * GIB, dtype=torch.uint8, device=OTHER)  # TOP
    try:
        torch.empty(GIB, dtype=torch.uint8, device=OTHER)  # OOM
    except torch.OutOfMemoryError as error:
        note(error, OTHER)
    assert len(spare) < len(kept)


def in_backward() -> None:
    weight = torch.empty(32768, 8192, device=PLAIN, requires_grad=True)
    x = torch.empty(4, 8192, device=PLAIN)
    y = x @ weight.t()  # OOM
    kept = torch.empty(6 * GIB, dtype=torch.uint8, device=PLAIN)  # TOP
    y.backward(torch.empty_like(y))
    del kept


def nearly_full() -> None:
    """Fail with free blocks that would suffice, on a device that is nearly full of live blocks."""
    kept = []
    for _ in range(7):
        batch = torch.empty(1000 * MIB, dtype=torch.uint8, device=PLAIN)
        del batch
        kept.append(torch.empty(960 * MIB, dtype=torch.uint8, device=PLAIN))  # TOP
    torch.empty(900 * MIB, dtype=torch.uint8, device=PLAIN)  # OOM
    kept.clear()


def random_sizes() -> None:
    """Run out of memory 25 times, on two streams and in a pool."""
    dice = random.Random(6)
    pool = torch.cuda.MemPool()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream()]
    kept: list[torch.Tensor] = []
    while len(errors) < 25:
        size = dice.choice([dice.randrange(1, MIB), dice.randrange(MIB, 12 * MIB), dice.randrange(MIB, 1500 * MIB)])
        in_pool = torch.cuda.use_mem_pool(pool) if dice.random() < 0.1 else contextlib.nullcontext()
        try:
            with in_pool, torch.cuda.stream(dice.choice(streams)):
                kept.append(torch.empty(size, dtype=torch.uint8, device=PLAIN))
        except torch.OutOfMemoryError as error:
            note(error)
            for _ in range(len(kept) // 3):
                kept.pop(dice.randrange(len(kept)))


def random_sizes_expandable() -> None:
    set_allocator_settings("expandable_segments:True")
    random_sizes()


def no_case() -> None:
    torch.empty(GIB, dtype=torch.uint8, device=PLAIN)


def run(case: str, program: Callable[[], None], folder: Path) -> None:
    errors.clear()
    alloctrace.enable(folder / f"{case}.alloctrace", devices=("cuda",))
    try:
        program()
    except torch.OutOfMemoryError as error:
        note(error, SHARED if case == "another_process" else PLAIN)
    alloctrace.disable()
    (folder / f"{case}.json").write_text(json.dumps(errors))
    Path(os.environ["SIMCUDA_NVML_EXTRA"]).write_text("0")
    give_back_everything()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_summary()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(name, globals()[name], Path(sys.argv[1]))
