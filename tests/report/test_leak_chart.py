"""The chart of a leak: what its lines held over the run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from marked_programs import run_analyze
from steady_clock import make_steady

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.judge import find_leaks
from pytorch_alloctrace.analysis.leaks.leak import GROWING, SURVIVORS

PROGRAM = """
import sys, torch, pytorch_alloctrace as alloctrace

kept, buffer = [], torch.empty(0)
with alloctrace.enable("run.alloctrace", devices=("cpu",)):
    for number in range(int(sys.argv[2])):
        kept.append(torch.empty(1000 * (1 + number % 3)))
        buffer = torch.cat([buffer, torch.ones(500)])
        if sys.argv[1] == "steps":
            alloctrace.step()
        else:
            alloctrace.mark("tick")
"""


@pytest.fixture
def trace(run_program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> alloctrace.Trace:
    run_program(PROGRAM, "steps", "30")
    return alloctrace.load(tmp_path / "run.alloctrace")


def held(trace: alloctrace.Trace, line: int, at: str) -> int:
    sites = trace.sites(device="cpu", at=at)
    return int(sites.loc[sites["line"] == line, "live_bytes"].sum())


def test_levels_are_what_the_lines_held(trace: alloctrace.Trace, tmp_path: Path) -> None:
    leaks = {leak.kind: leak for leak in find_leaks(trace, "cpu").leaks}
    survivors, growing = leaks[SURVIVORS], leaks[GROWING]
    assert survivors.live == tuple(held(trace, survivors.line.line, f"step:{step}") for step in range(30))
    levels = [held(trace, growing.line.line, f"step:{step}") for step in range(30)]
    assert list(growing.live) == sorted(set(growing.live)) and set(growing.live) <= set(levels)
    assert growing.live[-1] == levels[-1] and len(growing.live) > 20

    shown = run_analyze(tmp_path, "leaks", "run.alloctrace")
    # From zero: the buffers begin with a fifth of what they come to.
    assert shown.count(" live: ▁") == 1 == shown.count(" live: ▂") and "█  3.91 KiB → 234 KiB" in shown
    plain = run_analyze(tmp_path, "run.alloctrace", PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert plain.isascii() and "3.91 KiB to 234 KiB" in plain
    narrow = run_analyze(tmp_path, "leaks", "run.alloctrace", "--width", "50")
    assert max(map(len, (line for line in narrow.splitlines() if "live:" in line))) <= 50
    findings = json.loads(run_analyze(tmp_path, "run.alloctrace", "--json"))["findings"]
    assert [finding["live_bytes_over_run"] for finding in findings if finding["leak_kind"] == SURVIVORS] == [
        list(survivors.live)
    ]


def test_without_steps_by_iterations(
    run_program: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run_program(PROGRAM, "time", "90")
    assert make_steady(tmp_path / "run.alloctrace") == 90
    trace = alloctrace.load(tmp_path / "run.alloctrace")
    [leak] = [leak for leak in find_leaks(trace, "cpu").leaks if leak.kind == SURVIVORS]
    assert leak.unit == "iteration" and len(leak.live) == 90 and list(leak.live) == sorted(leak.live)
    assert leak.live[-1] == held(trace, leak.line.line, "end") == 720_000
    # Allocated evenly over the run: half of it is there in the middle.
    assert leak.live[40] < 360_000 < leak.live[50]
