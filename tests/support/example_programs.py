"""Runs of programs of examples/ in one process: `example_programs.py FOLDER NAME...`.

Each starts with an unused device, and writes FOLDER/NAME.alloctrace, and its output and error to FOLDER/NAME.txt.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
from pathlib import Path

import torch
from cuda_programs import give_back_everything

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects.walk import Walker

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, folder: Path) -> None:
    program = str(EXAMPLES / f"{name}.py")
    sys.argv = [program, str(folder / f"{name}.alloctrace")]
    with (folder / f"{name}.txt").open("w") as output, contextlib.redirect_stdout(output):
        try:
            runpy.run_path(program, run_name="__main__")
        except torch.OutOfMemoryError as error:
            print(f"OutOfMemoryError: {error}")
    if alloctrace.is_enabled():
        alloctrace.disable()
    give_back_everything()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_summary()


if __name__ == "__main__":
    # Skips the search of library variables, a second for each of 22 scans: no library holds a tensor of an example.
    Walker.walk_libraries = lambda walker, walk, *limits: walk.prefer(walker.rank)  # type: ignore[method-assign]
    sys.path.insert(0, str(EXAMPLES))  # as for a program run from that folder
    traces, *examples = sys.argv[1:]
    for example in examples:
        run(example, Path(traces))
