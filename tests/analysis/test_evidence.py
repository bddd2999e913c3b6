"""The evidence of a verdict: states are asked for in one ordered walk, and few of them after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shared_recordings import record_once, record_report, run_source

from pytorch_alloctrace.analysis.evidence import MAX_LATE_LOOKUPS, collect_evidence
from pytorch_alloctrace.analysis.leaks.judge import judge_leaks
from pytorch_alloctrace.analysis.summary import summarize
from pytorch_alloctrace.analysis.walk import Walk
from pytorch_alloctrace.errors import CompactedError
from pytorch_alloctrace.reading.recorded import RecordedTrace
from pytorch_alloctrace.reading.replay import Replay

GROWS = """
import torch, pytorch_alloctrace as alloctrace
alloctrace.enable("run.alloctrace", devices=("cpu",))
buffer = torch.empty(1000)
for number in range(100):
    buffer = torch.cat([buffer, torch.empty(500)])
    alloctrace.step()
"""


def test_states_of_a_verdict_are_visited_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = RecordedTrace(record_once("report", record_report) / "run.alloctrace")
    asked: list[int] = []
    in_walk: list[int] = []
    state, make = Replay._read_state, Walk.make

    def count(replay: Replay, ask: Any, until: int, *rest: Any) -> Any:
        asked.append(until)
        return state(replay, ask, until, *rest)

    def walk(self: Walk) -> None:
        asked.clear()
        make(self)
        in_walk.extend(asked)

    monkeypatch.setattr(Replay, "_read_state", count)
    monkeypatch.setattr(Walk, "make", walk)

    assert summarize(trace).devices

    assert len(in_walk) > 10 and in_walk == sorted(in_walk)


def test_late_lookups_for_a_growing_buffer_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = RecordedTrace(run_source(tmp_path, GROWS) / "run.alloctrace")
    evidence = collect_evidence(trace, "cpu")

    verdict = judge_leaks(evidence)

    assert [leak.kind for leak in verdict.leaks] == ["growing"]
    assert 0 < evidence.parts[0].late_lookups <= MAX_LATE_LOOKUPS
    monkeypatch.setattr("pytorch_alloctrace.analysis.evidence.MAX_LATE_LOOKUPS", evidence.parts[0].late_lookups)
    with pytest.raises(AssertionError, match="after the walk"):
        evidence.parts[0].blocks_at(0)


def test_visit_of_a_folded_position_raises_when_its_result_is_asked_for(tmp_path: Path) -> None:
    trace = RecordedTrace(run_source(tmp_path, GROWS) / "run.alloctrace")
    walk = Walk(trace)

    def look() -> None:
        raise CompactedError("compacted")

    visit = walk.visit(3, look)
    walk.make()

    assert visit.is_compacted
    with pytest.raises(CompactedError):
        _ = visit.result
