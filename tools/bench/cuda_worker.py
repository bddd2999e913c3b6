"""One recorder's side of tools/bench/cuda: waits for rounds, runs them, answers with what they cost."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

DEPTH = 20
HISTORY_ENTRIES = 100_000
"""Size of torch's ring: enough for a few steps, and it stays in the processor's caches no worse than a larger one."""


def start_recorder(name: str, folder: Path) -> None:
    if name == "alloctrace":
        import pytorch_alloctrace as alloctrace

        alloctrace.enable(folder / "bench.alloctrace", devices=("cuda",))
    elif name == "alloctrace, stacks='none'":
        import pytorch_alloctrace as alloctrace

        alloctrace.enable(folder / "bench-no-stacks.alloctrace", devices=("cuda",), stacks="none")
    elif name.startswith("torch history"):
        stacks = "python" if "python" in name else "all"
        torch.cuda.memory._record_memory_history(context="all", stacks=stacks, max_entries=HISTORY_ENTRIES)


def pairs(count: int) -> dict[str, float]:
    empty = torch.empty
    wall, own, process = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(count):
        empty(1000, device="cuda")
    own, process = time.thread_time() - own, time.process_time() - process
    wall = time.perf_counter() - wall
    return {"wall": wall / count * 1e9, "own_cpu": own / count * 1e9, "other_cpu": (process - own) / count * 1e9}


def at_depth(depth: int, count: int) -> dict[str, float]:
    return pairs(count) if depth <= 1 else at_depth(depth - 1, count)


def contended(count: int) -> dict[str, float]:
    """The same with a second thread that runs Python all the time: whoever asks for the GIL waits for its turn."""
    running = True

    def spin() -> None:
        while running:
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        return at_depth(DEPTH, count)
    finally:
        running = False
        thread.join()


class Training:
    """Steps of a transformer of 8 layers: some 700 operators that allocate, and no arithmetic on a simulated device, so
    the share of the recorder is the largest that it can be."""

    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        self.model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(8, 64, 256, device="cuda")

    def steps(self, count: int) -> dict[str, float]:
        wall, process = time.perf_counter(), time.process_time()
        own = time.thread_time()
        for _ in range(count):
            self.model(self.batch).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()
        own = time.thread_time() - own
        process, wall = time.process_time() - process, time.perf_counter() - wall
        return {"wall": wall / count * 1e9, "process_cpu": process / count * 1e9, "own_cpu": own / count * 1e9}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)  # waiting threads of a pool burn processor time that would pass for the recorder's
    training: Training | None = None
    start_recorder(name, folder)
    torch.empty(1000, device="cuda")
    answer: Any = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
    while True:
        print(json.dumps(answer), flush=True)
        request = sys.stdin.readline().split()
        if not request:
            return
        kind, count = request[0], int(request[1])
        if kind == "pairs":
            answer = at_depth(DEPTH, count)
        elif kind == "contended":
            answer = contended(count)
        else:
            training = training or Training()
            answer = training.steps(count)


if __name__ == "__main__":
    main()
