"""Programs with one thing wrong each, and healthy ones: run as ``condition_programs.py FOLDER``.

Each is traced to FOLDER/NAME.alloctrace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from cuda_programs import give_back_everything, set_allocator_settings, work_pending_on
from steady_clock import make_steady, tick

import pytorch_alloctrace as alloctrace

MIB = 1 << 20
STEPS = 12


def tensor(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def run(step: Callable[[int], None]) -> None:
    for number in range(STEPS):
        step(number)
        alloctrace.step()
        tick()


def healthy() -> None:
    weights = [tensor(64) for _ in range(4)]

    def step(_: int) -> None:
        activations = [tensor(40) for _ in weights]
        del activations

    run(step)


def fragmentation() -> None:
    kept = []

    def step(number: int) -> None:
        if number:
            return
        large = []
        for _ in range(20):  # each round fills a segment of 20 MiB
            large += [tensor(7.5), tensor(7.5)]
            kept.append(torch.empty(5 * MIB, dtype=torch.uint8, device="cuda"))  # LINE

    run(step)


def cache() -> None:
    def step(number: int) -> None:
        if number == 0:
            warmup = [tensor(100) for _ in range(4)]
            del warmup
        small = tensor(60)
        del small

    run(step)


def rounding() -> None:
    set_allocator_settings("roundup_power2_divisions:2")
    kept = []

    def step(number: int) -> None:
        if number < 10:
            kept.append(torch.empty(97 * MIB, dtype=torch.uint8, device="cuda"))  # LINE

    run(step)


def pending() -> None:
    other = torch.cuda.Stream()

    def step(_: int) -> None:
        with work_pending_on(other):
            for _ in range(3):
                used = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")  # LINE
                used.record_stream(other)
                del used
            tick()
            tick()

    run(step)


def churn() -> None:
    def step(_: int) -> None:
        activations = [tensor(40) for _ in range(5)]
        del activations
        torch.cuda.empty_cache()

    run(step)


PROGRAMS = {program.__name__: program for program in (healthy, fragmentation, cache, rounding, pending, churn)}

if __name__ == "__main__":
    for name, program in PROGRAMS.items():
        path = Path(sys.argv[1]) / f"{name}.alloctrace"
        alloctrace.enable(path, devices=("cuda",))
        program()
        alloctrace.disable()
        make_steady(path, 20_000_000)
        give_back_everything()
