"""Which slow tests run: none unless asked for, those whose files have changed, or all; and what is remembered."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import slow_tests
from running import ROOT, program_environment


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two groups: of folder one/, and of files two*."""
    monkeypatch.setattr(slow_tests, "ROOT", tmp_path)
    monkeypatch.setattr(slow_tests, "CHECKED", tmp_path / "checked.json")
    monkeypatch.setattr(slow_tests, "GROUPS", {"one": ("one",), "two": ("two*",)})
    (tmp_path / "one").mkdir()
    for name in ("one/a", "one/b", "two.py", "three"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_group_runs_when_its_files_have_changed(project: Path) -> None:
    changed = slow_tests.changed_groups

    def passed(*groups: str) -> None:
        slow_tests.remember({group: slow_tests.fingerprint(group) for group in groups})

    assert changed() == ["one", "two"]
    passed("two")
    assert changed() == ["one"]
    passed("one")
    assert changed() == []
    (project / "three").write_text("of no group")
    (project / "one" / "module.so").write_text("built")
    assert changed() == []
    (project / "one" / "a").write_text("edited")
    assert changed() == ["one"]
    (project / "one" / "a").write_text("one/a")
    assert changed() == []
    (project / "one" / "c").write_text("new")
    (project / "two.py").rename(project / "two_renamed.py")
    assert changed() == ["one", "two"]
    passed("one", "two")
    (project / "one" / "b").unlink()
    assert changed() == ["one"]


def test_groups_that_no_longer_exist_are_forgotten(project: Path) -> None:
    checked = project / "checked.json"
    checked.write_text('{"gone": "0", "two": "0"}')
    slow_tests.remember({"one": "1"})
    assert json.loads(checked.read_text()) == {"one": "1", "two": "0"}


def test_every_group_has_files_and_tests() -> None:
    marked = set()
    for path in {*(ROOT / "tests").rglob("test_*.py")} - {Path(__file__)}:
        marked |= set(re.findall(r'mark\.slow\("(\w+)"\)', path.read_text()))
    assert marked == set(slow_tests.GROUPS)
    for group, paths in slow_tests.GROUPS.items():
        for path in paths:
            found = list(ROOT.glob(path))
            assert found, f"{group}: {path} does not exist"


TESTS = """
import pytest
def test_quick(): pass
@pytest.mark.slow("one")
def test_slow(): assert not pathlib.Path("fails").exists()
@pytest.mark.slow("two")
@pytest.mark.parametrize("n", [1, 2])
def test_slower(n): pass
import pathlib
"""
CONFTEST = f"""
import sys, pathlib
sys.path.insert(0, {str(ROOT / "tests" / "support")!r})
import slow_tests
slow_tests.GROUPS = {{"one": ("one",), "two": ("two*",)}}
slow_tests.ROOT = pathlib.Path(__file__).parents[1]
slow_tests.CHECKED = slow_tests.ROOT / "checked.json"
exec(compile(pathlib.Path({str(ROOT / "tests" / "conftest.py")!r}).read_text(), "conftest.py", "exec"))
"""


@pytest.fixture
def run(project: Path) -> Callable[..., str]:
    """Runs pytest in a project with one quick test, one slow test of group one and two of group two."""
    (project / "pytest.ini").write_text("[pytest]\ntestpaths = tests\naddopts = --strict-markers\n")
    (project / "tests").mkdir()
    (project / "tests" / "test_them.py").write_text(TESTS)
    (project / "tests" / "conftest.py").write_text(CONFTEST)

    def run(*arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *arguments],
            cwd=project, env=program_environment(), capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return run


def test_what_runs_and_what_is_left_out(run: Callable[..., str], project: Path) -> None:
    said = run()
    assert "1 passed" in said and "left out: 3 slow tests (one 1, two 2); tools/test --all runs them" in said
    slow_tests.remember({"one": slow_tests.fingerprint("one")})
    for workers in ("0", "2"):
        said = run("--changed", "-n", workers)
        assert "3 passed" in said and "left out: 1 slow tests (one 1)" in said


def test_what_has_passed_is_remembered(run: Callable[..., str], project: Path) -> None:
    checked = project / "checked.json"
    # Some of its tests say nothing about a group.
    assert "2 passed" in run("--all", "-k", "slower") and not checked.exists()
    assert "1 passed" in run("--slow=one")
    assert set(json.loads(checked.read_text())) == {"one"}
    said = run("--all")
    assert "4 passed" in said and "left out" not in said
    assert set(json.loads(checked.read_text())) == {"one", "two"}
    checked.unlink()
    (project / "fails").touch()
    assert "1 failed" in run("--all", status=1) and not checked.exists()
