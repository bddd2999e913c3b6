"""tools/gpu_check when one of its parts fails: it says so, and the others run. (What it finds when all is well is in
test_gpu_sequences.py.)"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from running import ROOT, gpu_count


@pytest.fixture
def gpu_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool as a module, with its logs in tmp_path."""
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tools" / "gpu_check.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_check", module)  # dataclasses look for it there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path / "logs")
    return module


def check_with(gpu_check: ModuleType, out: Path | None = None, seconds: float = 60) -> Any:
    return gpu_check.Check(True, "none", time.monotonic() + seconds, out)


@pytest.mark.skipif(gpu_count() > 0, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "gpu_check.py"], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no NVIDIA GPU" in done.stderr


def test_a_part_that_fails_is_reported_and_the_others_run(
    gpu_check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(check: Any) -> None:
        check.checked("failing", [sys.executable, "-c", "print('said before'); raise SystemExit(5)"])

    def breaks(check: Any) -> None:
        raise KeyError("no such thing")

    def works(check: Any) -> None:
        check.result["worked"] = check.checked("working", [sys.executable, "-c", "print('fine')"])

    parts = {"one": fails, "two": breaks, "three": works}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    out = tmp_path / "result.json"
    assert check_with(gpu_check, out).run(list(parts)) == 1
    result = json.loads(out.read_text())
    assert result["failed"]["one"] == "failing: exit status 5; its last lines: said before"
    assert result["failed"]["two"] == "KeyError: 'no such thing'"
    assert set(result["failed"]) == {"one", "two"} and set(result["seconds"]) == set(parts)
    assert result["worked"] == "fine\n"
    printed = capfd.readouterr().err
    assert "one FAILED: failing: exit status 5" in printed and "two FAILED" in printed and "three FAILED" not in printed
    assert (tmp_path / "logs" / "failing.log").read_text() == "said before\n"
    assert check_with(gpu_check, out).run(["three"]) == 0


def test_what_takes_too_long_is_stopped_with_all_that_it_started(gpu_check: ModuleType, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Opening the pipe waits until the other side is open, too.
    child = f"import time\npipe = open({str(pipe)!r}, 'w')\ntime.sleep(600)"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(gpu_check.PartFailed, match="slow was stopped: the time is up"):
        check_with(gpu_check, seconds=1).command("slow", [sys.executable, "-c", program])
    # The end of the pipe: no process has it open. One that is being killed may still have it for a moment.
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    deadline = time.monotonic() + 120
    while is_open(end) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_open(end)
    os.close(end)


def is_open(pipe: int) -> bool:
    """Whether a process has the other end of a pipe open."""
    try:
        return os.read(pipe, 1) != b""
    except BlockingIOError:
        return True


def test_the_report_of_the_tests_is_read(gpu_check: ModuleType, tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError('no fixture')\n"
        "def test_good(): pass\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_each(n): assert n == 1, 'the number is wrong'\n"
        "def test_skipped(): pytest.skip('needs two GPUs')\n"
        "def test_error(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=600, check=False)
    total: dict[str, Any] = {"passed": 0, "failed": [], "skipped": {}}
    gpu_check.add_report(report, tests, total)
    assert total["passed"] == 2
    assert total["skipped"] == {"test_some.py::test_skipped": "needs two GPUs"}
    reasons = {failed["test"]: failed["reason"] for failed in total["failed"]}
    assert set(reasons) == {"test_some.py::test_each[2]", "test_some.py::test_error"}
    assert "the number is wrong" in reasons["test_some.py::test_each[2]"]
    assert "no fixture" in reasons["test_some.py::test_error"]
