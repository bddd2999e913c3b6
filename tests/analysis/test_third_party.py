"""Third-party programs, run to their ends on the CPU; tests/corpus/score.py also runs them on CUDA."""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

import pytest
from running import ROOT, run_python

MIN_FIRST = 57
"""Minimum number of leaks, of 62, whose line is first; 58 measured. Of the others, two leave nothing on the CPU and two
report a call of the marked line."""


@pytest.mark.slow("third_party")
def test_most_third_party_leaks_are_found_and_no_healthy_program_fails(tmp_path: Path) -> None:
    command, traces = [sys.executable, str(ROOT / "tests/corpus/score.py")], str(tmp_path / "traces")
    scores = tmp_path / "scores.json"
    for arguments in (["record", traces, "--device", "cpu", "--whole"], ["judge", traces, "--json", str(scores)]):
        process = run_python(ROOT, [*command, *arguments], True, 3000, {}, fresh=True)
        assert not process.stderr, process.stderr
    rows = json.loads(scores.read_text())
    assert len(rows) == 126
    leaking = collections.Counter(row["verdict"] for row in rows if row["program"].startswith("leak_"))
    healthy = collections.Counter(row["verdict"] for row in rows if row["program"].startswith("healthy_"))
    assert leaking["first"] >= MIN_FIRST, process.stdout
    assert healthy["accused"] == 0 and healthy["clear"] >= 62, process.stdout
