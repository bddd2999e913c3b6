"""Programs whose requests are equal under all allocator settings: what_if_programs.py NAME TRACE records one."""

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
from pytorch_alloctrace.recording import object_scans as looks

MIB = 2**20


def server() -> None:
    """Serve requests of different lengths; keep a little for each of a hundred sessions."""
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
    """Grow caches by a piece at each token."""
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
    """Allocate sizes of all kinds, and free them in no order."""
    held: list[torch.Tensor] = []
    for _ in range(1500):
        held.append(block(random.choice([0.001, 0.1, 0.9, 3, 7, 15, 40, 90]) * random.uniform(0.8, 1.2)))
        while sum(one.nbytes for one in held) > 2000 * MIB:
            held.pop(random.randrange(len(held)))


STEPS = {"mlp": 20, "transformer": 6, "convnet": 12, "streams": 40, "empty_cache": 40}
"""Steps of each program that cuda_programs has."""
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
    looks.FIRST_SCAN_EVENTS = sys.maxsize  # a look comes at another event in each run, and a free may wait for it
    gc.disable()  # objects die where the program lets go of them
    with alloctrace.enable(trace, devices=("cuda",)):
        PROGRAMS[name]()
