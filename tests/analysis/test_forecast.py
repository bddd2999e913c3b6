"""Rates per iteration: forecasts, compared with the iteration that runs out of memory, and limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from marked_programs import run_analyze
from running import has_nvidia_gpu, needs_cuda_build
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

pytestmark = [needs_cuda_build, pytest.mark.skipif(has_nvidia_gpu(), reason="needs a device of 1 GiB")]
ROW_BYTES = 128 << 10
PROGRAM = f"""
import random, sys, torch
import pytorch_alloctrace as alloctrace

def iterate(history, work):
    count = 0
    while True:
        work(history)
        count += 1
        yield count

def lengthen(history):
    row = torch.ones(1, {ROW_BYTES // 4}, device="cuda")
    history[0] = torch.cat([history[0], row])

def fragment(history, numbers=random.Random(0)):
    batch = torch.ones(numbers.randrange(1 << 20, 3 << 20), device="cuda")
    history.append(torch.ones({ROW_BYTES // 4}, device="cuda"))
    del batch

def main(name, history, work, recorded):
    alloctrace.enable(f"{{name}}.alloctrace", devices=("cuda",))
    for count in iterate(history, work):
        if count == recorded:
            break
    alloctrace.disable()
    try:
        for more in iterate(history, work):
            pass
    except torch.OutOfMemoryError:
        open(f"{{name}}.txt", "w").write(str(more))

main("lengthen", [torch.ones(0, {ROW_BYTES // 4}, device="cuda")], lengthen, 1300)
torch.cuda.empty_cache()
main("fragment", [], fragment, 1200)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("forecast"), PROGRAM, cuda=True, memory="1GiB")


@pytest.mark.parametrize("name", ["lengthen", "fragment"])
def test_forecast_is_close_to_the_iteration_that_runs_out_of_memory(folder: Path, name: str) -> None:
    leak = next(finding.leak for finding in alloctrace.load(folder / f"{name}.alloctrace").diagnose() if finding.leak)

    # The trace of so many iterations has only every second one.
    assert leak.unit == "iteration" and leak.bytes_per_unit == pytest.approx(ROW_BYTES, rel=0.05)
    assert leak.forecast_seconds is not None
    forecast = leak.forecast_seconds / leak.seconds_per_unit
    assert forecast == pytest.approx(int((folder / f"{name}.txt").read_text()), rel=0.3)


def test_limit_per_iteration_is_for_traces_without_steps(folder: Path) -> None:
    run_analyze(folder, "leaks", "lengthen.alloctrace", "--fail-above", "100KiB/iteration", status=1)
    run_analyze(folder, "leaks", "lengthen.alloctrace", "--fail-above", "200KiB/iteration")
    error = run_analyze(folder, "leaks", "lengthen.alloctrace", "--fail-above", "100KiB/step", status=2)
    assert "the trace has no steps" in error
    error = run_analyze(
        folder, "diff", "lengthen.alloctrace", "--since", "1ms", "--fail-above", "1KiB/iteration", status=2
    )
    assert "diff does not count iterations" in error
