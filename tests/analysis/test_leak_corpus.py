"""The labelled corpus: every way to leak is found, with its line first, and nothing that only grows is called a leak.

On the simulated CUDA device and on the CPU; all cases of a device run in one process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import leak_corpus
import pytest
from running import ROOT, run_python, with_cuda
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace

LEAKING = leak_corpus.cases(leak_corpus.LEAKING)
HEALTHY = leak_corpus.cases(leak_corpus.HEALTHY)


@pytest.fixture(scope="module", params=[pytest.param("cpu", marks=pytest.mark.slow("recording")), "cuda"])
def recorded(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Return a device, and the folder with the trace of every case on it."""
    device = request.param

    def record(folder: Path) -> None:
        command = [sys.executable, str(ROOT / "tests/support/leak_corpus.py"), device, str(folder)]
        run_python(folder, with_cuda(command, memory="8GiB") if device == "cuda" else command, True, 900, {})

    return device, record_once(f"leaks_{device}", record)


@pytest.mark.parametrize("name", LEAKING)
def test_a_leak_is_found_with_its_line_first(recorded: tuple[str, Path], name: str) -> None:
    device, folder = recorded
    trace = alloctrace.load(folder / f"{name}.alloctrace")
    found = trace.leaks().to_frame()
    assert len(found), "no leak found"
    first = found.iloc[0]
    assert (first["filename"], first["line"]) in leak_corpus.leaking_lines(LEAKING[name], device), found.to_string()
    frames = [(frame.filename, frame.line) for frame in trace.frames(first["stack_id"])]
    assert (first["filename"], first["line"]) in frames


@pytest.mark.parametrize("name", HEALTHY)
def test_what_only_grows_is_no_leak(recorded: tuple[str, Path], name: str) -> None:
    _, folder = recorded
    found = alloctrace.load(folder / f"{name}.alloctrace").leaks().to_frame()
    assert found.empty, found.to_string()
