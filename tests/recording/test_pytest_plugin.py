"""Runs of pytest with the option --alloctrace."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace

TESTS = """
import gc, pytest, torch
kept = []

@pytest.mark.alloctrace_limit_memory("1 MiB", "cpu")
def test_within():
    torch.empty(2**20, dtype=torch.uint8)

@pytest.mark.alloctrace_limit_memory("1 MiB")
def test_above():
    small = torch.empty(1000, dtype=torch.uint8)
    large = torch.empty(2**20, dtype=torch.uint8)  # the line

@pytest.mark.alloctrace_limit_leaks("1 KiB")
def test_leaks():
    for _ in range(3):
        kept.append(torch.empty(5000, dtype=torch.uint8))  # the leak

@pytest.mark.alloctrace_limit_leaks(0, device="cpu")
def test_garbage_cycle():
    cycle = [torch.empty(5000)]
    cycle.append(cycle)

@pytest.mark.alloctrace_limit_leaks("1 KiB")
@pytest.mark.alloctrace_limit_memory("1 KiB", device="cuda:0")
def test_fails_by_itself():
    kept.append(torch.empty(5000))
    assert False, "its own reason"

@pytest.mark.alloctrace_limit_memory("large", "cpu")
def test_invalid_limit(): pass

@pytest.mark.alloctrace_limit_memory(device="cpu")
def test_missing_limit(): pass

@pytest.fixture
def recording(tmp_path):
    import pytorch_alloctrace
    with pytorch_alloctrace.enable(tmp_path / "own.alloctrace") as session: yield session

def test_own_recording(recording):
    torch.empty(10)
    assert recording.is_recording

def test_without_memory(): pass
"""


def run_tests(folder: Path, *options: str, tests: str = TESTS, cuda: bool = False) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(tests)
    (folder / "run_pytest.py").write_text("import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
    command = [sys.executable, "run_pytest.py", "-p", "pytorch_alloctrace.pytest_plugin", "-p", "no:cacheprovider"]
    command += options
    return run_python(folder, with_cuda(command) if cuda else command, False, 300, {"COLUMNS": "120"})


def outcome_counts(text: str) -> dict[str, int]:
    last = text.strip().splitlines()[-1]
    return {name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|error)", last)}


def text_after(out: str, sentence: str) -> str:
    return out.partition(sentence)[2].partition("The trace of")[0]


def test_plugin_does_nothing_without_its_option(tmp_path: Path) -> None:
    process = run_tests(tmp_path, "--strict-markers")

    assert outcome_counts(process.stdout) == {"failed": 1, "passed": 8}, process.stdout
    assert "its own reason" in process.stdout and "alloctrace:" not in process.stdout
    assert not [*tmp_path.glob("*.alloctrace*")]


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_tests_fail_above_their_limits(tmp_path: Path, options: tuple[str, ...]) -> None:
    process = run_tests(tmp_path, "--alloctrace", *options)

    out = process.stdout
    assert outcome_counts(out) == {"failed": 5, "passed": 4}, out + process.stderr
    above = text_after(out, "The peak of cpu was 1.00 MiB (1,049,576 B) allocated: the limit is 1 MiB.")
    assert "1.00 MiB  test_it.py:12 in test_above" in above and "# the line" in above
    assert "1000 B  test_it.py:11 in test_above" in above
    leaks = text_after(out, "The test left 14.6 KiB (15,000 B) behind: the limit is 1 KiB.")
    assert "14.6 KiB  test_it.py:17 in test_leaks" in leaks and "# the leak" in leaks
    assert "its own reason" in out and "left 19.5 KiB" not in out, "a test that failed by itself gets no second reason"
    assert "'large' is not a size" in out and "alloctrace_limit_memory takes a limit and an optional device" in out
    assert re.search(r"1\.00 MiB +cpu +test_it.py::test_above", out), "no summary"
    # Only the traces of tests above a limit stay.
    paths = [Path(path) for path in re.findall(r"The trace of this test: (\S+)", out)]
    assert len(set(paths)) == 2 and all(alloctrace.load(path).integrity.is_complete for path in paths)
    assert sorted(path for folder in {path.parent for path in paths} for path in folder.iterdir()) == sorted(set(paths))


def test_alloctrace_keep_stores_traces_in_a_folder(tmp_path: Path) -> None:
    process = run_tests(tmp_path, "--alloctrace-keep", "traces", "-k", "within or without_memory")

    assert outcome_counts(process.stdout) == {"passed": 2}, process.stdout
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == ["test_it.py_test_within.alloctrace", "test_it.py_test_without_memory.alloctrace"]


def test_missing_torch_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide/sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    tests = "import pytest\n@pytest.mark.alloctrace_limit_memory('1 B', 'cpu')\ndef test_it(): pass\n"
    (tmp_path / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "pytorch_alloctrace.pytest_plugin", "--alloctrace", "-q"]

    process = run_python(tmp_path, command, False, 600, {"PYTHONPATH": f"{tmp_path / 'hide'}:{ROOT}"}, fresh=True)

    assert outcome_counts(process.stdout) == {"passed": 1}, process.stdout + process.stderr
    messages = [line for line in process.stdout.splitlines() if "alloctrace" in line]
    assert messages == ["alloctrace: nothing is recorded and no limit checked: torch is not installed"]


@needs_cuda_build
def test_limits_apply_to_a_cuda_device(tmp_path: Path) -> None:
    tests = """
import pytest, torch
kept = []

@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(1024, 1024).cuda()

@pytest.mark.alloctrace_limit_memory("100 MiB", "cuda:0")
@pytest.mark.alloctrace_limit_leaks("1 KiB", device="cuda")
def test_earlier_memory_counts_only_for_the_peak(model):
    model(torch.ones(8, 1024, device="cuda"))  # cuBLAS's workspace is no leak

@pytest.mark.alloctrace_limit_memory("4 MiB", "cuda")
def test_above(model):
    torch.empty(2**20, device="cuda")

@pytest.mark.alloctrace_limit_leaks(device="cuda", limit="1 KiB")
def test_leaks(model):
    kept.append(torch.empty(2**20, device="cuda"))
"""

    process = run_tests(tmp_path, "--alloctrace", tests=tests, cuda=True)

    assert outcome_counts(process.stdout) == {"failed": 2, "passed": 1}, process.stdout
    assert "the limit is 4 MiB" in process.stdout and "test_it.py:16 in test_above" in process.stdout
    assert "before the recording" in process.stdout, "the weights are missing"
    assert "The test left 4.00 MiB (4,194,304 B) behind on cuda:0" in process.stdout
    assert "test_it.py:20 in test_leaks" in process.stdout


def test_plugin_is_declared_as_an_entry_point() -> None:
    declared = (ROOT / "pyproject.toml").read_text().partition("[project.entry-points.pytest11]\n")[2]
    assert declared.startswith('alloctrace = "pytorch_alloctrace.pytest_plugin"\n')
