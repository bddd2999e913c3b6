"""Selection of tests: slow groups, and tests affected by a change."""

from __future__ import annotations

import re
from pathlib import Path

import affected_tests
import slow_groups
from running import ROOT


def test_groups_match_markers_and_extras() -> None:
    marked = set()
    for path in {*(ROOT / "tests").rglob("test_*.py")} - {Path(__file__)}:
        marked |= set(re.findall(r'mark\.slow\("(\w+)"\)', path.read_text()))
    assert marked == set(slow_groups.GROUPS)

    extras = set(re.findall(r"^dev-(\w+) =", (ROOT / "pyproject.toml").read_text(), re.M))
    assert extras <= set(slow_groups.GROUPS)


def test_change_affects_tests_that_import_it_and_those_of_its_subject_but_not_others() -> None:
    reached = affected_tests.files_reached_by_tests(affected_tests.read_files())
    affected, affects_all = affected_tests.affected_tests(["pytorch_alloctrace/reading/following.py"], reached)
    assert {"tests/reading/test_positions.py", "tests/recording/test_status.py"} <= affected.keys()
    assert "tests/what_if/test_what_if.py" not in affected and not affects_all

    affected, affects_all = affected_tests.affected_tests(["tests/support/core_probe.cpp"], reached)
    assert "tests/format/test_codec.py" in affected and "tests/report/test_serve.py" not in affected and not affects_all


def test_change_of_unknown_or_shared_file_affects_all_tests() -> None:
    tests: dict[str, set[str]] = {path: set() for path in filter(affected_tests.is_test, affected_tests.read_files())}
    changed = [
        *("csrc/new/file.cpp", "pytorch_alloctrace/new/file.py", "pytorch_alloctrace/new.py", "tools/new.py"),
        *("unheard_of.toml", "tests/conftest.py", "pyproject.toml"),
    ]
    affected, affects_all = affected_tests.affected_tests(changed, tests)

    assert affects_all == changed and affected.keys() == tests.keys()


def test_mapped_subjects_exist() -> None:
    files = affected_tests.read_files()
    for beginning, tests in affected_tests.SUBJECTS.items():
        assert any(name.startswith(beginning) for name in files), beginning
        for part in tests:
            assert any(name.startswith(f"tests/{part}") for name in files), part
