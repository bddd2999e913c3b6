"""Programs with one inefficiency each, and healthy ones, recorded by `inefficiency_programs.py FOLDER`.

NAME.json has the peaks of reserved and active bytes that torch reports.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from cuda_programs import block, give_back_everything, set_allocator_settings, work_pending_on
from steady_clock import make_steady, tick

import pytorch_alloctrace as alloctrace

MIB = 1 << 20
STEPS = 12

Program = Iterator[None]
"""Iterator that yields at the end of each step."""


def healthy() -> Program:
    weights = [block(64) for _ in range(4)]
    for _ in range(STEPS):
        activations = [block(40) for _ in weights]
        del activations
        yield


def fragmentation() -> Program:
    large, pinning = [], []
    for _ in range(20):  # each round fills a segment of 20 MiB
        large += [block(7.5), block(7.5)]
        pinning.append(torch.empty(5 * MIB, dtype=torch.uint8, device="cuda"))  # LINE
    del large
    for _ in range(STEPS):
        yield


def cache() -> Program:
    warmup = [torch.empty(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]  # LINE
    del warmup
    for _ in range(STEPS):
        small = block(60)
        del small
        yield


def rounding() -> Program:
    set_allocator_settings("roundup_power2_divisions:2")
    blocks = []
    for number in range(STEPS):
        if number < 10:
            blocks.append(torch.empty(97 * MIB, dtype=torch.uint8, device="cuda"))  # LINE
        yield


def remainders() -> Program:
    blocks = []
    for _ in range(STEPS):
        # Every second block is freed, so that each hole of 2 MiB has neighbours in use.
        larger = []
        for _ in range(20):
            larger.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
            blocks.append(torch.empty(MIB + MIB // 4, dtype=torch.uint8, device="cuda"))
        larger.clear()
        blocks += [torch.empty(MIB + MIB // 4, dtype=torch.uint8, device="cuda") for _ in range(20)]  # LINE
        yield


def tiny_requests() -> Program:
    blocks = []
    for _ in range(STEPS):
        blocks += [torch.empty(4, dtype=torch.uint8, device="cuda") for _ in range(12_000)]  # LINE
        yield


def pending() -> Program:
    other = torch.cuda.Stream()
    for _ in range(STEPS):
        with work_pending_on(other):
            for _ in range(3):
                used = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")  # LINE
                used.record_stream(other)
                del used
            tick()
            tick()
        yield


def churn() -> Program:
    for _ in range(STEPS):
        activations = [block(40) for _ in range(5)]
        del activations
        torch.cuda.empty_cache()
        yield


def pinned() -> Program:
    warmup = block(900)
    del warmup
    table = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")  # LINE
    for _ in range(STEPS):
        large = block(905)
        del large
        yield
    del table


def pinned_in_step() -> Program:
    for _ in range(STEPS):
        warmup = block(900)
        del warmup
        output = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")  # LINE
        large = block(905)
        del output, large
        yield


def pinned_in_step_and_later() -> Program:
    def allocate_output() -> torch.Tensor:
        return torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")  # LINE

    kept = []
    for step in range(STEPS):
        warmup = block(900)
        del warmup
        output = allocate_output()
        if step == 0:
            kept.append(allocate_output())
        large = block(905)
        del output, large
        yield
    del kept


def sizes() -> Program:
    cache = block(100)
    for step in range(STEPS):
        cache = torch.empty((140 + 40 * step) * MIB, dtype=torch.uint8, device="cuda")  # LINE
        yield
    del cache


def streams() -> Program:
    workers = [torch.cuda.Stream() for _ in range(6)]
    for _ in range(STEPS):
        for worker in workers:
            with torch.cuda.stream(worker):
                result = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")  # LINE
                del result
        yield


def graphs() -> Program:
    captured = []
    for _ in range(STEPS):
        captured.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(captured[-1]):  # LINE
            activation = block(60)
            del activation
        yield


def graphs_in_one_pool() -> Program:
    captured, outputs, pool = [], [], torch.cuda.graph_pool_handle()
    for _ in range(STEPS):
        captured.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(captured[-1], pool=pool):
            activation = block(600)
            del activation
            if not outputs:
                outputs.append(block(2))
        yield


def mempools() -> Program:
    pools = []
    for _ in range(STEPS):
        pools.append(torch.cuda.MemPool())
        with torch.cuda.use_mem_pool(pools[-1]):  # LINE
            work = block(60)
            del work
        yield


def split_limit() -> Program:
    set_allocator_settings("expandable_segments:True,max_split_size_mb:128")
    answers = []
    for _ in range(STEPS):
        scores = block(92)
        hidden = torch.empty(46 * MIB, dtype=torch.uint8, device="cuda")  # LINE
        answers.append(block(2))
        del scores, hidden
        yield


def garbage() -> Program:
    gc.disable()
    for _ in range(STEPS):
        memory = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")  # LINE
        cycle: dict[str, object] = {"memory": memory}
        cycle["self"] = cycle
        del cycle, memory
        yield
    gc.enable()
    gc.collect()
    yield


def _run_layers(layers: torch.nn.Module) -> None:
    # Without a graph that outlives the call.
    layers(torch.empty(4, 1024, device="cuda")).sum().item()


def autocast() -> Program:
    with torch.autocast("cuda", dtype=torch.bfloat16):  # LINE
        for _ in range(STEPS):
            _run_layers(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda())
            yield


def autocast_in_each_step() -> Program:
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _run_layers(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda())
        yield


def small_requests() -> Program:
    statistics = []
    for number in range(STEPS):
        scores = torch.empty((40 + 5 * number) * MIB, dtype=torch.uint8, device="cuda")  # LINE
        del scores
        statistics.append([torch.empty(MIB, dtype=torch.uint8, device="cuda") for _ in range(4)])
        yield


PROGRAMS = (healthy, fragmentation, cache, rounding, pending, churn)
PROGRAMS += (autocast, autocast_in_each_step, small_requests)
PROGRAMS += (
    remainders,
    tiny_requests,
    garbage,
    pinned,
    pinned_in_step,
    pinned_in_step_and_later,
    sizes,
    streams,
    graphs,
    graphs_in_one_pool,
    mempools,
    split_limit,
)

if __name__ == "__main__":
    for program in PROGRAMS:
        path = Path(sys.argv[1]) / f"{program.__name__}.alloctrace"
        torch.cuda.reset_peak_memory_stats()
        alloctrace.enable(path, devices=("cuda",))
        for _ in program():
            alloctrace.step()
            tick()
        alloctrace.disable()
        statistics = torch.cuda.memory_stats()
        peaks = {name: statistics[f"{name}_bytes.all.peak"] for name in ("reserved", "active")}
        path.with_suffix(".json").write_text(json.dumps(peaks))
        make_steady(path, 20_000_000)
        give_back_everything()
