"""`alloctrace cost`: it measures all recorders that are there, in few words, and says why where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from running import run_python

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.cost import ALLOCTRACE, NO_STACKS, PLAIN, PROFILER
from pytorch_alloctrace.cost.command import parse, write_costs
from pytorch_alloctrace.cost.measuring import DEPTHS, Costs, Rounds, started
from pytorch_alloctrace.report.screen import Screen


def cost(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytorch_alloctrace", "cost", *arguments]
    return run_python(folder, command, False, 600, {})


def test_each_recorder_has_a_process_and_rounds_of_its_own() -> None:
    measured = Rounds()
    with started((PLAIN, ALLOCTRACE), "cpu") as (workers, folder):
        for _ in range(2):
            measured.add(workers, "pairs", 20, 1000)
        measured.add(workers, "steps", 1)
        for worker in workers:
            worker.stop()
        trace = alloctrace.load(folder / "all.alloctrace")
    assert workers[0].machine["torch"]
    assert {name: len(rows) for name, rows in measured.of.items()} == {PLAIN: 3, ALLOCTRACE: 3}
    assert all(row["wall"] > 0 for rows in measured.of.values() for row in rows)
    # Recorded were the pairs, and the step.
    assert trace.kind_counts["alloc"] > 2000 and trace.integrity.state == "complete"
    assert not folder.exists()


@pytest.mark.slow("recording")  # the test above starts two of the recorders, in the same way
def test_it_measures_what_is_there_and_leaves_nothing(tmp_path: Path) -> None:
    done = cost(tmp_path, "--device", "cpu", "--seconds", "1", "--json")
    assert done.returncode == 0 and done.stderr == ""
    found = json.loads(done.stdout)
    assert {PLAIN, ALLOCTRACE, NO_STACKS, PROFILER} <= set(found["pairs"]) == set(found["training_step"])
    assert [int(depth) for depth in found["by_depth"]] == list(DEPTHS)
    assert all(set(rows) >= {PLAIN, ALLOCTRACE} for rows in found["by_depth"].values())
    assert found["by_depth"]["20"] == found["pairs"]
    assert found["pairs"][PLAIN]["added_wall"] == 0 < found["pairs"][PLAIN]["wall"]
    # Recorded were the pairs, and the steps.
    assert 1 < found["bytes_per_event"] < 64 and found["rounds"] >= 5
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_measured_is_said(tmp_path: Path) -> None:
    done = cost(tmp_path, "--device", "cuda")
    assert (done.returncode, done.stdout) == (2, "") and "measure --device cpu" in done.stderr.splitlines()[-1]
    with pytest.raises(SystemExit, match="2"):
        parse(["--seconds", "-1"])


def rounds(**least: float) -> Rounds:
    names = {"plain": PLAIN, "ours": ALLOCTRACE, "profiler": PROFILER}
    slower = (1.3, 1, 1.5)
    return Rounds(
        {
            names[name]: [{"wall": value * by, "process_cpu": value * 2} for by in slower]
            for name, value in least.items()
        }
    )


def test_the_text_says_what_is_added_and_that_the_machine_was_busy(capsys: pytest.CaptureFixture[str]) -> None:
    machine = {"device": "cpu", "cores": 2, "torch": "2.11.0", "python": "3.11.7"}
    by_depth = {5: rounds(plain=1000, ours=1250), 200: rounds(plain=1000, ours=2500)}
    steps = rounds(plain=1e8, ours=1.05e8, profiler=2e8)
    costs = Costs("cpu", machine, rounds(plain=1000, ours=1400, profiler=900), by_depth, steps, 6.54)
    write_costs(costs, Screen(Console(width=80), 80))
    text = capsys.readouterr().out
    assert "the program alone took 30% more" in " ".join(text.split())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "alloctrace 1,400 ns +400 ns +40%" in lines and "torch.profiler 900 ns -100 ns -10%" in lines
    assert "5 frames +250 ns" in lines and "200 frames +1,500 ns" in lines
    assert "alloctrace 105 ms +5 ms +5%" in lines
    assert "alloctrace takes 5.0% more processor time. An event takes 6.5 bytes on disk." in " ".join(lines)
