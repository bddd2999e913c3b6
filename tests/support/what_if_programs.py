"""Programs whose requests do not depend on allocator settings: `what_if_programs.py NAME TRACE` records one."""

from __future__ import annotations

import functools
import gc
import random
import sys
import warnings
from collections.abc import Callable

import torch
from cuda_programs import PROGRAMS as SHARED
from cuda_programs import block

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

MIB = 2**20


def server() -> None:
    """Serve requests of different lengths, and keep 3 MiB for each of a hundred sessions."""
    running: list[torch.Tensor] = []
    sessions: dict[int, torch.Tensor] = {}
    for _ in range(400):
        running.append(block(random.choice([60, 120, 250, 500])))
        while sum(cache.nbytes for cache in running) > 5000 * MIB:
            cache = running.pop(random.randrange(len(running)))
            sessions[random.randrange(100)] = cache[: 3 * MIB].clone()
            del cache


def lengths() -> None:
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, device="cuda")
    optimizer = torch.optim.AdamW(layer.parameters())
    for _ in range(40):
        loss = layer(torch.randn(8, random.randrange(16, 400), 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def generation() -> None:
    """Concatenate a piece to each cache per token."""
    for _ in range(6):
        caches = [block(random.randrange(1, 8)) for _ in range(12)]
        for _ in range(30):
            caches = [torch.cat([cache, cache[: MIB // 2]]) for cache in caches]


def images() -> None:
    model = torch.nn.Sequential(*[torch.nn.Conv2d(8, 8, 3, padding=1, device="cuda") for _ in range(6)])
    for _ in range(40):
        side = random.choice([64, 96, 128, 160, 224, 288])
        model(torch.randn(4, 8, side, side, device="cuda")).mean().backward()


def buffers() -> None:
    """Allocate blocks of many sizes, and free them in random order."""
    held: list[torch.Tensor] = []
    for _ in range(1500):
        held.append(block(random.choice([0.001, 0.1, 0.9, 3, 7, 15, 40, 90]) * random.uniform(0.8, 1.2)))
        while sum(buffer.nbytes for buffer in held) > 2000 * MIB:
            held.pop(random.randrange(len(held)))


STEPS = {"mlp": 20, "transformer": 6, "convnet": 12, "streams": 40, "empty_cache": 40}
"""Number of steps of each program of cuda_programs."""
PROGRAMS: dict[str, Callable[[], None]] = {
    **{name: functools.partial(SHARED[name].run, steps) for name, steps in STEPS.items()},
    **{program.__name__: program for program in (server, lengths, generation, images, buffers)},
}


if __name__ == "__main__":
    name, trace = sys.argv[1:]
    warnings.simplefilter("ignore")
    random.seed(1)
    torch.manual_seed(0)
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.autograd.set_multithreading_enabled(False)
    object_scans.FIRST_SCAN_EVENTS = sys.maxsize  # scans come at different events in each run and may delay frees
    gc.disable()  # objects must die when the program drops them
    with alloctrace.enable(trace, devices=("cuda",)):
        PROGRAMS[name]()
