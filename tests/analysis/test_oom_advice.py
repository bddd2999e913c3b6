"""Settings that are advised where a program runs out of memory help: run again under one, it gets all that it asks for.

What is advised otherwise: tools/bench/advice runs the programs as changed (oom_advised_programs.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from marked_programs import run_marked
from running import has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory.oom import FRAGMENTED
from pytorch_alloctrace.report.oom import sentences

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs are made for devices of 8 GiB"),
]
CUT_UP = ("fragmented", "fragmented_with_max_split_size", "fragmented_below_a_memory_fraction")


def run(folder: Path, program: str, *cases: str) -> None:
    (folder / "extra").write_text("0")
    extra = str(folder / "extra")
    run_marked(program, folder, *cases, memory="8GiB", devices=3, SIMCUDA_NVML_EXTRA=extra)


def test_under_each_setting_that_is_advised_it_goes_through(tmp_path: Path) -> None:
    run(tmp_path, "oom_programs.py", *CUT_UP)
    again = []
    for case in CUT_UP:
        [found] = alloctrace.load(tmp_path / f"{case}.alloctrace").ooms()
        assert found.verdict == FRAGMENTED
        again += [f"{case}={one.setting.text}" for one in found.advice.helping]
        # No event tells of the limit that this one has: what helps is only certain where it allows what is reserved.
        assert found.advice.is_certain == (found.limit is None)
        if found.limit is not None:
            assert found.settings_that_help() == ()
            assert "would have been served if the limit allows 3.0" in " ".join(sentences(found))
    assert len(again) == 2 * len(CUT_UP)
    run(tmp_path, "oom_advised_programs.py", *again)
    for name in again:
        assert alloctrace.load(tmp_path / f"{name}.alloctrace").ooms() == [], name
