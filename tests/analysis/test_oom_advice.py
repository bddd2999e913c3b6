"""What is advised where a program runs out of memory helps: changed as its verdict says, or run again under the setting
that is named, the program gets all that it asks for. tools/bench/advice makes a table of the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from marked_programs import run_marked
from running import ROOT, has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.free_memory.oom import FRAGMENTED
from pytorch_alloctrace.report.oom import sentences

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs are made for devices of 8 GiB"),
]
ADVISED = ROOT / "tests/support/oom_advised_programs.py"
NO_CASES = ("block", "long_lived_first", "under")
CHANGED = [
    node.name
    for node in ast.parse(ADVISED.read_text()).body
    if isinstance(node, ast.FunctionDef) and node.name not in NO_CASES
]
CUT_UP = ("fragmented", "fragmented_with_max_split_size", "fragmented_below_a_memory_fraction")


def run(folder: Path, program: str, *cases: str) -> None:
    (folder / "extra").write_text("0")
    extra = str(folder / "extra")
    run_marked(program, folder, *cases, memory="8GiB", devices=3, SIMCUDA_NVML_EXTRA=extra)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("changed")
    run(made, ADVISED.name, *CHANGED)
    return made


@pytest.mark.parametrize("case", CHANGED)
def test_changed_as_advised_it_goes_through(changed: Path, case: str) -> None:
    trace = alloctrace.load(changed / f"{case}.alloctrace")
    assert trace.ooms() == [] and trace.kind_counts["alloc"] > 0


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
    run(tmp_path, ADVISED.name, *again)
    for name in again:
        assert alloctrace.load(tmp_path / f"{name}.alloctrace").ooms() == [], name
