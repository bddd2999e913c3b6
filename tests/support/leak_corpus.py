"""Recorder and shared functions of the labelled programs in leak_cases_*.py and healthy_cases_*.py.

python tests/support/leak_corpus.py DEVICE FOLDER [CASE...]     # a trace for each case
"""

from __future__ import annotations

import gc
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from steady_clock import make_steady, tick

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

STEPS = 60
"""Default number of steps."""
REQUESTS = 150
"""Number of requests of a case without steps: about five per time window."""
LEAKING = ("leak_cases_training", "leak_cases_serving")
HEALTHY = ("healthy_cases_training", "healthy_cases_serving")

Case = Callable[[str], object]

has_ticked = False
"""True if the recorded case has called steady_clock.tick()."""


def network(device: str) -> object:
    """Return a small model whose activations are larger than its input."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)).to(device)


def update(optimizer: Any) -> None:
    """Step the optimizer and drop the gradients."""
    optimizer.step()
    optimizer.zero_grad()


def steps(count: int = STEPS) -> Iterator[int]:
    """Yield step numbers. A step ends when the next number is requested."""
    for number in range(count):
        yield number
        alloctrace.step()


def requests() -> Iterator[int]:
    """Yield request numbers, with a tick of steady_clock before each and no steps."""
    global has_ticked
    has_ticked = True
    for number in range(REQUESTS):
        tick()
        yield number


def cases(modules: tuple[str, ...]) -> dict[str, Case]:
    """Return the public functions of the modules, by name."""
    return {
        name: function
        for module in map(importlib.import_module, modules)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }


def leaking_lines(case: Case, device: str) -> set[tuple[str, int]]:
    """Return the file and number of each line of the case marked `# LEAK` for the device."""
    function = getattr(case, "leaks_in", case)
    lines, first = inspect.getsourcelines(function)
    kind = device.partition(":")[0]
    marks = [re.search(r"# LEAK(?: on (\w+))?$", line) for line in lines]
    marked = {first + number for number, mark in enumerate(marks) if mark and mark[1] in (None, kind)}
    assert marked, f"{case.__name__} marks no line for {kind}"
    return {(inspect.getsourcefile(function) or "", number) for number in marked}


def record(device: str, folder: Path, names: Sequence[str] = ()) -> None:
    """Record each case (default: all) on the device, in this process, into FOLDER/CASE.alloctrace."""
    import torch
    import torch._dynamo  # the first optimizer would import it

    global has_ticked
    torch.set_num_threads(1)  # the tensors are too small for threads
    torch.zeros(1, device=device).sum()  # the allocations of a device's first use belong to no case
    gc.freeze()  # collections skip torch's own objects
    object_scans.MAX_FINAL_SCAN_S = object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_SHARE = (
        0.0  # referrer paths are not tested
    )
    for name, case in cases(LEAKING + HEALTHY).items():
        if names and name not in names:
            continue
        path = folder / f"{name}.alloctrace"
        has_ticked = False
        with alloctrace.enable(path, devices=(device,)):
            result = case(device)
        del result
        gc.enable()
        gc.collect()
        if has_ticked:  # otherwise reading the trace is unnecessary
            make_steady(path)


if __name__ == "__main__":
    # The cases import leak_corpus, a module distinct from __main__: has_ticked must be set there.
    importlib.import_module("leak_corpus").record(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
