"""Helpers of the labelled programs in leak_cases_*.py and healthy_cases_*.py, and their recording.

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
from pytorch_alloctrace.recording import object_scans as looks

STEPS = 60
"""Used by most cases."""
REQUESTS = 150
"""Used by the cases without steps: about five for each window of time."""
LEAKING = ("leak_cases_training", "leak_cases_serving")
HEALTHY = ("healthy_cases_training", "healthy_cases_serving")

Case = Callable[[str], object]

has_ticked = False
"""Whether time passes in the recorded case, by the clock of steady_clock."""


def network(device: str) -> object:
    """Return a small model whose activations are larger than its input."""
    import torch

    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64)).to(device)


def update(optimizer: Any) -> None:
    """Let an optimizer step, and drop the gradients."""
    optimizer.step()
    optimizer.zero_grad()


def steps(count: int = STEPS) -> Iterator[int]:
    """Yield numbers of steps. Each step ends when the next number is requested."""
    for number in range(count):
        yield number
        alloctrace.step()


def requests() -> Iterator[int]:
    """Yield requests to a server, apart in time (by the clock of steady_clock), without steps."""
    global has_ticked
    has_ticked = True
    for number in range(REQUESTS):
        tick()
        yield number


def cases(modules: tuple[str, ...]) -> dict[str, Case]:
    """Return the cases of some modules, by name: their public functions."""
    return {
        name: function
        for module in map(importlib.import_module, modules)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }


def leaking_lines(case: Case, device: str) -> set[tuple[str, int]]:
    """Return the file and number of each line of a case that is marked as leaking on a device."""
    where = getattr(case, "leaks_in", case)
    lines, first = inspect.getsourcelines(where)
    kind = device.partition(":")[0]
    marks = [re.search(r"# LEAK(?: on (\w+))?$", line) for line in lines]
    marked = {first + number for number, mark in enumerate(marks) if mark and mark[1] in (None, kind)}
    assert marked, f"{case.__name__} marks no line for {kind}"
    return {(inspect.getsourcefile(where) or "", number) for number in marked}


def record(device: str, folder: Path, names: Sequence[str] = ()) -> None:
    """Run these cases, or all, on a device in this process, and record each into a trace of its own in the folder."""
    import torch
    import torch._dynamo  # as the first optimizer would

    global has_ticked
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    torch.zeros(1, device=device).sum()  # what a device's first use takes belongs to no case
    gc.freeze()  # nor are torch's own objects looked through for each
    looks.MAX_FINAL_SCAN_S = looks.FREE_SCAN_S = looks.MAX_SCAN_SHARE = 0.0  # holders are not judged
    for name, case in cases(LEAKING + HEALTHY).items():
        if names and name not in names:
            continue
        path = folder / f"{name}.alloctrace"
        has_ticked = False
        with alloctrace.enable(path, devices=(device,)):
            kept = case(device)
        del kept
        gc.enable()
        gc.collect()
        if has_ticked:  # else it would be read for nothing
            make_steady(path)


if __name__ == "__main__":
    # The module that the cases import, not this one, which is __main__.
    importlib.import_module("leak_corpus").record(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
