"""Choice of tests by group: the slow ones run only when they are asked for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import slow_groups
from running import ROOT, program_environment

TESTS = """
import pytest
def test_quick(): pass
@pytest.mark.slow("docs")
def test_slow(): pass
@pytest.mark.slow("browser")
@pytest.mark.parametrize("n", [1, 2])
def test_slower(n): pass
"""
CONFTEST = f"""
import pathlib, sys
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
exec(compile(pathlib.Path({str(ROOT / "tests" / "conftest.py")!r}).read_text(), "conftest.py", "exec"))
"""


def test_every_group_has_tests_and_every_extra_a_group() -> None:
    marked = set()
    for path in {*(ROOT / "tests").rglob("test_*.py")} - {Path(__file__)}:
        marked |= set(re.findall(r'mark\.slow\("(\w+)"\)', path.read_text()))
    assert marked == set(slow_groups.GROUPS)
    extras = set(re.findall(r"^dev-(\w+) =", (ROOT / "pyproject.toml").read_text(), re.M))
    assert extras <= set(slow_groups.GROUPS)


def test_slow_tests_run_when_asked_for_and_are_counted_when_left_out(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "test_them.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=program_environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    for workers in ("0", "2"):
        out = run("-n", workers)
        assert "1 passed" in out and "left out: 3 slow tests (browser 2, docs 1)" in out
    out = run("--slow=browser")
    assert "2 passed" in out and "left out: 1 slow tests (docs 1)" in out
    out = run("--all")
    assert "4 passed" in out and "left out" not in out
