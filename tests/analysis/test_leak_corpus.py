"""The labelled corpus on the simulated CUDA device and on the CPU; all cases of a device run in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import leak_corpus
import pytest
from running import ROOT, run_python, with_cuda
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.leak import Doubt

LEAKING = leak_corpus.cases(leak_corpus.LEAKING)
HEALTHY = leak_corpus.cases(leak_corpus.HEALTHY)


@pytest.fixture(scope="module", params=[pytest.param("cpu", marks=pytest.mark.slow("recording")), "cuda"])
def recorded(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Record all cases on a device; return the device and the folder with the traces."""
    device = request.param

    def record(folder: Path) -> None:
        command = [sys.executable, str(ROOT / "tests/support/leak_corpus.py"), device, str(folder)]
        run_python(folder, with_cuda(command, memory="8GiB") if device == "cuda" else command, True, 900, {})

    return device, record_once(f"leaks_{device}", record)


RARE = ("counts_of_each_epoch_in_a_dict", "one_answer_in_fifteen_without_steps")
"""Cases that leave blocks behind 7 and 9 times: as many as an ensemble has members, so both readings are possible."""


@pytest.mark.parametrize("name", RARE)
def test_case_that_leaves_blocks_behind_a_few_times_is_undecided(recorded: tuple[str, Path], name: str) -> None:
    device, folder = recorded
    verdicts = alloctrace.load(folder / f"{name}.alloctrace").leaks().verdicts.values()
    [growth] = [growth for verdict in verdicts for growth in verdict.undecided]
    lines = leak_corpus.leaking_lines(LEAKING[name], device)
    assert growth.doubt is Doubt.RARE and (growth.site.filename, growth.site.line) in lines
    assert not any(verdict.leaks for verdict in verdicts)


@pytest.mark.parametrize("name", [name for name in LEAKING if name not in RARE])
def test_leaking_case_is_found_with_its_line_first(recorded: tuple[str, Path], name: str) -> None:
    device, folder = recorded
    trace = alloctrace.load(folder / f"{name}.alloctrace")
    leaks = trace.leaks().to_frame()
    assert len(leaks), "no leak found"
    first = leaks.iloc[0]
    assert (first["filename"], first["line"]) in leak_corpus.leaking_lines(LEAKING[name], device), leaks.to_string()
    frames = [(frame.filename, frame.line) for frame in trace.frames(first["stack_id"])]
    assert (first["filename"], first["line"]) in frames


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_case_has_no_leaks(recorded: tuple[str, Path], name: str) -> None:
    _, folder = recorded
    leaks = alloctrace.load(folder / f"{name}.alloctrace").leaks().to_frame()
    assert leaks.empty, leaks.to_string()
