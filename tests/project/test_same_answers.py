"""Differences between two answers that tools/same_answers reports."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from running import ROOT


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("same_answers", ROOT / "tools" / "same_answers.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compared_reports_differing_and_absent_fields(tool: ModuleType) -> None:
    old = tool.Answer(0, {"rows": [{"bytes": 1, "line": 3}], "rate": 0.1 + 0.2, "gone": 1})
    new = tool.Answer(3, {"rows": [{"allocated": 1, "line": 4}], "rate": 0.3})

    rules = tool.Rules({}, {"leaks": {"rows[].bytes": "allocated"}}, [])

    assert list(tool.compared(old, new, "leaks", rules)) == [
        ("exit status", 0, 3), ("rows[].line", 3, 4), ("gone", 1, "absent"),
    ]  # fmt: skip
    assert ("rows[].bytes", 1, "absent") in tool.compared(old, new, "peak", rules)


def test_different_row_counts_and_types_are_reported(tool: ModuleType) -> None:
    assert list(tool.differing("", [1], [1, 2])) == [("", [1], [1, 2])]
    assert list(tool.differing("x", True, 1)) == [("x", True, 1)]


def test_rules_allow_only_matching_differences(tool: ModuleType) -> None:
    rules = tool.Rules({}, {}, [{"question": "peak*", "field": "rows[[]].line", "reason": "counted from one"}])
    assert rules.allows(tool.Difference("peak-role", "rows[].line", "a.alloctrace", 0, 1))
    assert not rules.allows(tool.Difference("leaks", "rows[].line", "a.alloctrace", 0, 1))
