"""Measurements, text and errors of `alloctrace cost`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from running import run_python

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import parser
from pytorch_alloctrace.cost import ALLOCTRACE, NO_STACKS, PLAIN, PROFILER
from pytorch_alloctrace.cost.command import write_costs
from pytorch_alloctrace.cost.measuring import DEPTHS, Costs, Rounds, started
from pytorch_alloctrace.report.screen import Screen


def run_cost(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytorch_alloctrace", "cost", *arguments]
    return run_python(folder, command, False, 600, {})


def test_each_recorder_is_measured_in_its_own_process() -> None:
    rounds = Rounds()
    with started((PLAIN, ALLOCTRACE), "cpu") as (workers, folder):
        for _ in range(2):
            rounds.add(workers, "pairs", 20, 1000)
        rounds.add(workers, "steps", 1)
        for worker in workers:
            worker.stop()
        trace = alloctrace.load(folder / "all.alloctrace")

    assert workers[0].machine["torch"]
    assert {name: len(rows) for name, rows in rounds.of.items()} == {PLAIN: 3, ALLOCTRACE: 3}
    assert all(row["wall"] > 0 for rows in rounds.of.values() for row in rows)
    # The trace contains the pairs and the step.
    assert trace._recorded.kind_counts["alloc"] > 2000 and trace.integrity.state == "complete"
    assert not folder.exists()


@pytest.mark.slow("recording")  # the test above starts two of the recorders, in the same way
def test_cost_measures_all_recorders_and_leaves_no_files(tmp_path: Path) -> None:
    process = run_cost(tmp_path, "--device", "cpu", "--seconds", "1", "--json")

    assert process.returncode == 0 and process.stderr == ""
    costs = json.loads(process.stdout)
    assert {PLAIN, ALLOCTRACE, NO_STACKS, PROFILER} <= set(costs["pairs"]) == set(costs["training_step"])
    assert [int(depth) for depth in costs["by_depth"]] == list(DEPTHS)
    assert all(set(rows) >= {PLAIN, ALLOCTRACE} for rows in costs["by_depth"].values())
    assert costs["by_depth"]["20"] == costs["pairs"]
    assert costs["pairs"][PLAIN]["added_wall"] == 0 < costs["pairs"][PLAIN]["wall"]
    assert 1 < costs["bytes_per_event"] < 64 and costs["rounds"] >= 5
    assert not list(tmp_path.iterdir())


def test_cost_exits_2_when_device_is_missing_or_time_is_invalid(tmp_path: Path) -> None:
    process = run_cost(tmp_path, "--device", "cuda")
    assert (process.returncode, process.stdout) == (2, "")
    assert "measure --device cpu" in process.stderr.splitlines()[-1]
    with pytest.raises(SystemExit, match="2"):
        parser.parse(["cost", "--seconds", "-1"])


def make_rounds(wall: dict[str, float]) -> Rounds:
    """Return three rounds of each recorder; the second, the fastest, takes the given time."""
    ratios = (1.3, 1, 1.5)
    return Rounds({key: [{"wall": ns * ratio, "process_cpu": ns * 2} for ratio in ratios] for key, ns in wall.items()})


def test_text_reports_added_time_and_busy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"device": "cpu", "cores": 2, "torch": "2.11.0", "python": "3.11.7"}
    by_depth = {depth: make_rounds({PLAIN: 1000, ALLOCTRACE: ns}) for depth, ns in ((5, 1250), (200, 2500))}
    steps = make_rounds({PLAIN: 1e8, ALLOCTRACE: 1.05e8, PROFILER: 2e8})
    pairs = make_rounds({PLAIN: 1000, ALLOCTRACE: 1400, PROFILER: 900})
    costs = Costs("cpu", machine, pairs, by_depth, steps, 6.54)

    write_costs(costs, Screen(Console(width=80), 80))

    text = capsys.readouterr().out
    assert "the program alone took 30% longer" in " ".join(text.split())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "alloctrace 1,400 ns +400 ns +40%" in lines and "torch.profiler 900 ns -100 ns -10%" in lines
    assert "5 frames +250 ns" in lines and "200 frames +1,500 ns" in lines
    assert "alloctrace 105 ms +5 ms +5%" in lines
    assert "alloctrace takes 5.0% more processor time. An event takes 6.5 bytes on disk." in " ".join(lines)
