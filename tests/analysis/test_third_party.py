"""Programs by people who had not read how leaks are judged: most leaks are found, line first, and nobody is accused.

On the CPU and run to their ends; tests/corpus/score.py also does the others.
"""

from __future__ import annotations

import collections
import json
import sys
from pathlib import Path

import pytest
from running import ROOT, run_python

LEAST_FIRST = 57
"""Of 62: 58 when this was written. Two of the others make nothing that stays on the CPU, and two name a call of the
marked line."""


@pytest.mark.slow("third_party")
def test_programs_by_strangers(tmp_path: Path) -> None:
    command, traces = [sys.executable, str(ROOT / "tests/corpus/score.py")], str(tmp_path / "traces")
    scores = tmp_path / "scores.json"
    for arguments in (["record", traces, "--device", "cpu", "--whole"], ["judge", traces, "--json", str(scores)]):
        done = run_python(ROOT, [*command, *arguments], True, 3000, {}, fresh=True)
        assert not done.stderr, done.stderr
    rows = json.loads(scores.read_text())
    assert len(rows) == 126
    leaking = collections.Counter(row["verdict"] for row in rows if row["program"].startswith("leak_"))
    healthy = collections.Counter(row["verdict"] for row in rows if row["program"].startswith("healthy_"))
    assert leaking["first"] >= LEAST_FIRST, done.stdout
    assert healthy["accused"] == 0 and healthy["clear"] >= 62, done.stdout
