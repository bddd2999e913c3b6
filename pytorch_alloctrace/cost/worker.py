"""Process that allocates under one recorder: runs the rounds requested on stdin and answers with their times.

    python -m pytorch_alloctrace.cost.worker RECORDER DEVICE FOLDER

Requests are lines: "pairs DEPTH COUNT", "contended DEPTH COUNT" and "steps COUNT"; the answers are JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from . import ALLOCTRACE, HISTORY, HISTORY_ALL, MEMRAY, NO_STACKS, PROFILER, TRACKER

_HISTORY_ENTRIES = 100_000
"""Entries of torch's ring: enough for a few steps. A larger ring is as fast."""


class _Recorder:
    """The recorder of this process. Started once, except the profiler, which keeps its data in memory: once a round."""

    def __init__(self, name: str, device: Literal["cuda", "cpu"], folder: Path) -> None:
        self._is_profiler = name == PROFILER
        self.trace: Path | None = None
        if name in (ALLOCTRACE, NO_STACKS):
            import pytorch_alloctrace as alloctrace

            self.trace = folder / f"{'all' if name == ALLOCTRACE else 'none'}.alloctrace"
            alloctrace.enable(self.trace, devices=(device,), stacks="python" if name == ALLOCTRACE else "none")
        elif name == TRACKER:
            import pytorch_alloctrace as alloctrace

            # torch keeps calling the tracker after the recording has ended.
            with alloctrace.enable(folder / "tracker.alloctrace", devices=(device,)):
                torch.empty(1000, device=device)
        elif name in (HISTORY, HISTORY_ALL):
            stacks = "python" if name == HISTORY else "all"
            torch.cuda.memory._record_memory_history(context="all", stacks=stacks, max_entries=_HISTORY_ENTRIES)
        elif name == MEMRAY:
            import memray

            memray.Tracker(folder / "memray.bin").__enter__()

    @contextlib.contextmanager
    def round(self) -> Iterator[None]:
        if not self._is_profiler:
            yield
            return
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True):
            yield


def _run_pairs(device: str, count: int) -> dict[str, float]:
    empty = torch.empty
    wall, own, process = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(count):
        empty(1000, device=device)
    own, process = time.thread_time() - own, time.process_time() - process
    wall = time.perf_counter() - wall
    return {"wall": wall / count * 1e9, "own_cpu": own / count * 1e9, "other_cpu": (process - own) / count * 1e9}


def _run_at_depth(depth: int, device: str, count: int) -> dict[str, float]:
    return _run_pairs(device, count) if depth <= 1 else _run_at_depth(depth - 1, device, count)


def _run_contended(depth: int, device: str, count: int) -> dict[str, float]:
    """Run pairs while a second thread competes for the GIL."""
    running = True

    def spin() -> None:
        while running:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        return _run_at_depth(depth, device, count)
    finally:
        running = False
        thread.join()


class _Training:
    """Steps of a transformer of 8 layers: about 700 allocating operators each."""

    def __init__(self, device: str) -> None:
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(8, 64, 256, device=device)

    def steps(self, count: int) -> dict[str, float]:
        wall, process, own = time.perf_counter(), time.process_time(), time.thread_time()
        for _ in range(count):
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.batch.is_cuda:
            torch.cuda.synchronize()
        own = time.thread_time() - own
        process, wall = time.process_time() - process, time.perf_counter() - wall
        return {"wall": wall / count * 1e9, "process_cpu": process / count * 1e9, "own_cpu": own / count * 1e9}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[3])
    device: Literal["cuda", "cpu"] = "cuda" if sys.argv[2] == "cuda" else "cpu"
    warnings.simplefilter("ignore")  # the profiler warns about data that it drops between rounds
    torch.set_num_threads(1)  # the processor time of waiting pool threads would count as the recorder's
    training: _Training | None = None
    recorder = _Recorder(name, device, folder)
    torch.empty(1000, device=device)
    answer: Any = {"device": torch.cuda.get_device_name(0) if device == "cuda" else "cpu", "torch": torch.__version__}
    while True:
        print(json.dumps(answer), flush=True)
        request = sys.stdin.readline().split()
        if not request:
            return
        kind, *numbers = request
        if kind == "steps":
            training = training or _Training(device)
            with recorder.round():
                answer = training.steps(int(numbers[0]))
        else:
            measure = _run_contended if kind == "contended" else _run_at_depth
            with recorder.round():
                answer = measure(int(numbers[0]), device, int(numbers[1]))


if __name__ == "__main__":
    main()
