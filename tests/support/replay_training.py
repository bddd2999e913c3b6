"""Recordings of cuda_programs with checkpoints between operators."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import torch
from cuda_programs import PROGRAMS
from replay_programs import Recording
from torch.utils._python_dispatch import TorchDispatchMode


class Checker(TorchDispatchMode):
    """Dispatch mode with checkpoints between operators, also in backward, which inherits the mode."""

    def __init__(self, recording: Recording, growth: float) -> None:
        super().__init__()
        self._recording, self._growth = recording, growth
        self._operators, self._next, self._interval = 0, 7.0, 7.0

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = operator(*arguments, **(options or {}))
        self._operators += 1
        if self._operators >= self._next:
            self._interval *= self._growth
            self._next += self._interval
            self._recording.check()
        return result


def record(folder: Path, name: str, scale: float, growth: float) -> None:
    recording = Recording(folder / f"{name}.alloctrace", folder / f"{name}.expected", pools=list)
    with Checker(recording, growth):
        PROGRAMS[name].run(max(2, round(PROGRAMS[name].steps * scale)))
    recording.check()
    recording.end()
    gc.collect()
    torch.cuda.empty_cache()


def main(arguments: list[str]) -> None:
    """Record programs: FOLDER SCALE GROWTH NAME...

    SCALE multiplies the steps; GROWTH, above 1, is the ratio of successive intervals between checkpoints.
    """
    warnings.simplefilter("ignore")
    gc.disable()  # a collection between a mark and its snapshot would free blocks
    folder, scale, growth, *names = arguments
    if "graphs" in names:
        PROGRAMS["mlp"].run(1)  # cuBLAS must be initialized before a capture
    for name in names:
        record(Path(folder), name, float(scale), float(growth))
