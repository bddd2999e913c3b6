"""Evidence of a verdict: states are read in one ordered walk, and at most MAX_LATE_LOOKUPS after the walk."""

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


def test_summary_reads_states_in_ascending_order(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = RecordedTrace(record_once("report", record_report) / "run.alloctrace")
    positions: list[int] = []
    walk_positions: list[int] = []
    read_state, make_walk = Replay._read_state, Walk.make

    def record_position(replay: Replay, ask: Any, until: int, *arguments: Any) -> Any:
        positions.append(until)
        return read_state(replay, ask, until, *arguments)

    def record_walk(self: Walk) -> None:
        positions.clear()
        make_walk(self)
        walk_positions.extend(positions)

    monkeypatch.setattr(Replay, "_read_state", record_position)
    monkeypatch.setattr(Walk, "make", record_walk)

    assert summarize(trace).devices

    assert len(walk_positions) > 10 and walk_positions == sorted(walk_positions)


def test_late_lookups_for_a_growing_buffer_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = RecordedTrace(run_source(tmp_path, GROWS) / "run.alloctrace")
    evidence = collect_evidence(trace, "cpu")

    verdict = judge_leaks(evidence)

    assert [leak.kind for leak in verdict.leaks] == ["growing"]
    assert 0 < evidence.parts[0].late_lookups <= MAX_LATE_LOOKUPS
    monkeypatch.setattr("pytorch_alloctrace.analysis.evidence.MAX_LATE_LOOKUPS", evidence.parts[0].late_lookups)
    with pytest.raises(AssertionError, match="after the walk"):
        evidence.parts[0].blocks_at(0)


def test_visit_of_compacted_position_raises_when_result_is_read(tmp_path: Path) -> None:
    trace = RecordedTrace(run_source(tmp_path, GROWS) / "run.alloctrace")
    walk = Walk(trace)

    def read_compacted() -> None:
        raise CompactedError("compacted")

    visit = walk.visit(3, read_compacted)
    walk.make()

    assert visit.is_compacted
    with pytest.raises(CompactedError):
        _ = visit.result
