"""Programs with one inefficiency each, and a healthy one, recorded by `inefficiency_programs.py FOLDER`."""

from __future__ import annotations

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
    warmup = [block(100) for _ in range(4)]
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


PROGRAMS = {program.__name__: program for program in (healthy, fragmentation, cache, rounding, pending, churn)}

if __name__ == "__main__":
    for name, program in PROGRAMS.items():
        path = Path(sys.argv[1]) / f"{name}.alloctrace"
        alloctrace.enable(path, devices=("cuda",))
        for _ in program():
            alloctrace.step()
            tick()
        alloctrace.disable()
        make_steady(path, 20_000_000)
        give_back_everything()
