"""Comparison of many ranks: outliers with line and first step, and reports of missing traces."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_ranks import MIB, SCRIPT, Rank, write_ranks
from marked_programs import run_analyze

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.ranks import reduction, workers
from pytorch_alloctrace.analysis.ranks.outliers import Spread, find_departure
from pytorch_alloctrace.analysis.ranks.rank_summary import Levels, summarize_trace
from pytorch_alloctrace.analysis.ranks.runs import find_run
from pytorch_alloctrace.analysis.ranks.summary_file import summary_path
from pytorch_alloctrace.parser import PROGRAM

COUNT = 16


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 16 ranks on two hosts: 12 leaks from step 10 on, 5 runs out of memory, 14 has a cache from step 15 on, 3 is
    truncated, 8 corrupt, 6 missing, 9 of an earlier run; 2 has a child process; one file is no trace."""
    folder = tmp_path_factory.mktemp("mixed")
    faults: dict[int, dict[str, object]] = {
        12: {"leaks_from": 10},
        5: {"oom_at": 39},
        14: {"larger_from": 15},
        9: {"begins": -7200.0},
        3: {"steps": 20_000},
        8: {"steps": 20_000},
    }
    for number in range(COUNT):
        if number != 6:
            Rank(number, COUNT, host=f"node{number // 8}", **faults.get(number, {})).write(folder)  # type: ignore[arg-type]
    truncated, corrupt = folder / "alloctrace-3-1003.alloctrace", folder / "alloctrace-8-1008.alloctrace"
    complete = truncated.read_bytes()
    truncated.write_bytes(complete[: len(complete) * 7 // 10])
    flipped = bytearray(corrupt.read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    corrupt.write_bytes(flipped)
    Rank(2, COUNT, begins=2.0, process=77, parent=1002).write(folder)
    (folder / "notes.alloctrace").write_text("of something else")
    return folder


@pytest.mark.parametrize(
    ("scaled", "sentence"),
    [
        ({"inputs": 2, "activations": 2}, "All lines that differ hold 2 times as much: a larger input or batch."),
        (
            {"inputs": 0.5, "activations": 0.5},
            "All lines that differ hold 0.5 times as much: a smaller input or batch.",
        ),
        (
            {"inputs": 2, "activations": 2, "weights": 2},
            "All its lines hold 2 times as much: a larger input or batch, or more of the model.",
        ),
        ({"inputs": 1, "activations": 2}, ""),
        ({"inputs": 2, "activations": 2, "weights": 1.5}, ""),
    ],
)
def test_rank_whose_lines_all_grew_by_one_factor_has_a_larger_input(
    tmp_path: Path, scaled: dict[str, float], sentence: str
) -> None:
    usual = {"inputs": 64 * MIB, "activations": 512 * MIB, "weights": 1024 * MIB}
    ranks = {f"rank{number}": Rank(number, 4, inputs=usual["inputs"]) for number in range(4)}
    ranks["rank2"] = Rank(2, 4, **{name: int(usual[name] * scaled.get(name, 1)) for name in usual})
    write_ranks(tmp_path / "traces", 4, **ranks)

    text = run_ranks(tmp_path / "traces")

    assert "DIFFERS" in text and (sentence in text if sentence else "times as much" not in text)


@pytest.mark.parametrize(
    ("steps", "usual_seconds", "seconds", "is_different"),
    [
        pytest.param(40, (0.5,), (1.0,), True, id="slow"),
        pytest.param(40, (0.4, 0.5, 0.6), (0.9, 0.8, 1.0), True, id="slow_with_noise"),
        pytest.param(40, (0.4, 0.5, 1.0), (0.5, 0.9, 1.0), False, id="noise"),
        pytest.param(40, (0.5,), (0.4, 0.4, 2.0, 2.0, 2.0), False, id="slow_in_some_steps"),
        pytest.param(8, (0.5,), (1.0,), False, id="few_steps"),
    ],
)
def test_time_per_step_differs_only_if_nearly_all_steps_do(
    tmp_path: Path, steps: int, usual_seconds: tuple[float, ...], seconds: tuple[float, ...], is_different: bool
) -> None:
    ranks = {
        f"rank{number}": Rank(number, 2, steps=steps, seconds_per_step=of_rank)
        for number, of_rank in enumerate((usual_seconds, seconds))
    }
    write_ranks(tmp_path / "traces", 2, **ranks)

    text = run_ranks(tmp_path / "traces")

    assert ("DIFFERS" in text) == is_different, text
    assert ("per step, the other" in text) == is_different, text


def run_ranks(folder: Path, *options: str, status: int = 0) -> str:
    """Return the output for a folder of traces: JSON unchanged, text joined into one line."""
    output = run_analyze(folder.parent, folder.name, *options, status=status)
    return output if "--json" in options else " ".join(output.split())


def test_incomplete_traces_are_reported_before_findings(mixed: Path) -> None:
    text = run_ranks(mixed)
    assert "LEAK train.py:20 in keep: +12.0 MiB per step on rank 12 alone (of 14)" in text
    assert "It has held 600 MiB more than the others since step 15." in text
    assert text.startswith("INCOMPLETE 2 of 16 ranks have no trace here: 6 and 9.")
    warnings = text[: text.index("train.py")]
    assert "notes.alloctrace cannot be read" in warnings
    assert "Rank 3 is truncated: " in warnings and "What came after the break is unknown." in warnings
    assert "Rank 8 is corrupt: " in warnings and "Its figures are not compared." in warnings
    assert "of a process that a rank started: alloctrace-2-77.alloctrace" in text
    assert "of another run (2 h earlier): alloctrace-9-1009.alloctrace" in text


def test_findings_have_rank_line_and_first_step(mixed: Path) -> None:
    data = json.loads(run_ranks(mixed, "--json"))
    findings = {finding["kind"]: finding for finding in data["findings"]}
    assert [finding["kind"] for finding in data["findings"]] == ["oom", "leak", "differs"]
    assert findings["oom"]["ranks"] == [5] and "an allocation of 4.00 GiB failed in step 39" in findings["oom"]["title"]
    leak = findings["leak"]
    assert leak["ranks"] == [12] and leak["site"]["line"] == 20 and leak["bytes_per_unit"] == 12 * MIB
    assert leak["since_step"] == 10 and not leak["since_start"]
    differs = findings["differs"]
    assert differs["ranks"] == [14] and differs["site"]["line"] == 30 and differs["since_step"] == 15
    assert data["leaks"] == "found" and data["run"]["missing"] == [6, 9] and data["run"]["world_size"] == COUNT
    assert {row["rank"] for row in data["ranks"][:2]} == {5, 12}


def test_table_has_figures_of_each_rank(mixed: Path) -> None:
    ranks = alloctrace.load_ranks(mixed)
    table = ranks.table()
    assert ranks.world_size == COUNT
    assert sorted(table["rank"]) == [number for number in range(COUNT) if number not in (6, 9)]
    by_rank = table.set_index("rank")
    assert by_rank.loc[0, "peak_bytes"] == by_rank.loc[0, "reserved_bytes"] == 1536 * MIB
    assert by_rank.loc[0, "live_bytes"] == 1024 * MIB and by_rank.loc[0, "seconds_per_step"] == 0.5
    assert by_rank.loc[12, "leak_bytes_per_unit"] == 12 * MIB and by_rank.loc[12, "leak_filename"] == SCRIPT
    assert list(table[table["out_of_memory"]]["rank"]) == [5]
    assert by_rank.loc[3, "state"] == "truncated" and by_rank.loc[8, "state"] == "corrupt"
    assert by_rank.loc[11, "device"] == "cuda:3" and by_rank.loc[11, "host"] == "node1"
    assert ranks.table("cpu")["peak_bytes"].max() == 4096
    # The figures equal those of the single trace.
    trace = alloctrace.load(mixed / "alloctrace-12-1012.alloctrace")
    assert by_rank.loc[12, "reserved_bytes"] == trace.peak("reserved").bytes
    assert by_rank.loc[12, "leak_bytes_per_unit"] == sum(leak.bytes_per_unit for leak in trace.leaks().leaks)


def test_ranks_with_fail_exits_1_for_leak_and_3_when_inconclusive(mixed: Path, tmp_path: Path) -> None:
    run_ranks(mixed, "--fail", status=1)
    write_ranks(tmp_path / "healthy", 4)
    text = run_ranks(tmp_path / "healthy", "--fail")
    assert "OK All 4 ranks look alike: peak allocated 1.50 GiB" in text and "OK No leak found on any rank." in text
    assert "DIFFERS" not in text and "INCOMPLETE" not in text
    (tmp_path / "healthy" / "alloctrace-2-1002.alloctrace").unlink()
    assert "1 of 4 ranks has no trace here: 2" in run_ranks(tmp_path / "healthy", "--fail", status=3)
    write_ranks(tmp_path / "short", 2, rank0=Rank(0, 2, steps=3), rank1=Rank(1, 2, steps=3))
    assert "Too short to judge leaks on all 2 ranks" in run_ranks(tmp_path / "short", "--fail", status=3)


def test_leak_of_all_ranks_is_one_finding(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 8, **{f"rank{n}": Rank(n, 8, leaks_from=0, folder=f"/node{n}/job") for n in range(8)})
    text = run_ranks(tmp_path / "a", "--fail", status=1)
    assert text.count("LEAK") == 1 and "train.py:20 in keep: +12.0 MiB per step on all 8 ranks" in text
    assert "OK All 8 ranks look alike" in text


def test_no_rank_is_outlier_when_all_ranks_differ(tmp_path: Path) -> None:
    """Example: pipeline parallelism, where each rank has its own layers."""
    write_ranks(tmp_path / "a", 8, **{f"rank{n}": Rank(n, 8, weights=(512 + 256 * n) * MIB) for n in range(8)})
    text = run_ranks(tmp_path / "a")
    assert "No rank stands out, but they are not alike: peak allocated from 1.00 GiB to 2.75 GiB" in text
    assert "look alike" not in text and "DIFFERS" not in text


def test_two_of_four_ranks_differ_for_different_causes(tmp_path: Path) -> None:
    """The distances of both widen the spread: the rank with the cache is within it."""
    leak = Rank(2, 4, leaks_from=10, leak=40 * MIB)
    write_ranks(tmp_path / "a", 4, rank2=leak, rank3=Rank(3, 4, larger_from=20))
    data = json.loads(run_ranks(tmp_path / "a", "--json"))

    findings = [(row["kind"], row["ranks"], row["since_step"], row["site"]["line"]) for row in data["findings"]]
    assert findings == [("leak", [2], 10, 20), ("differs", [3], 20, 30)]
    assert [measure["measure"] for measure in data["findings"][1]["measures"]] == ["peak", "reserved", "live"]
    assert "It has held 600 MiB more than the others since step 20." in run_ranks(tmp_path / "a")


@pytest.mark.parametrize(
    ("count", "weights"),
    [
        pytest.param(4, {1: 1400, 3: 1900}, id="stages_of_a_pipeline"),
        pytest.param(3, {1: 1400}, id="two_ranks_left"),
        pytest.param(4, {3: 1060}, id="below_the_floor"),
    ],
)
def test_ranks_beside_a_leak_are_not_outliers_unless_two_others_are_alike(
    tmp_path: Path, count: int, weights: dict[int, int]
) -> None:
    ranks = {f"rank{number}": Rank(number, count, weights=size * MIB) for number, size in weights.items()}
    write_ranks(tmp_path / "a", count, **ranks, rank2=Rank(2, count, leaks_from=10, leak=40 * MIB))

    assert "DIFFERS" not in run_ranks(tmp_path / "a")


def test_larger_of_two_ranks_differs(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 2, rank1=Rank(1, 2, larger_from=5))
    data = json.loads(run_ranks(tmp_path / "a", "--json"))
    assert [(row["kind"], row["ranks"], row["since_step"]) for row in data["findings"]] == [("differs", [1], 5)]


def test_larger_batch_and_leak_of_a_rank_have_their_own_beginnings(tmp_path: Path) -> None:
    larger = {"weights": 1324 * MIB, "activations": 1024 * MIB}
    write_ranks(tmp_path / "both", 4, rank1=Rank(1, 4, **larger, leaks_from=9))
    write_ranks(tmp_path / "batch", 4, rank1=Rank(1, 4, activations=1024 * MIB))

    both, batch = run_ranks(tmp_path / "both"), run_ranks(tmp_path / "batch")
    [finding] = json.loads(run_ranks(tmp_path / "both", "--json"))["findings"]

    assert "Its difference from the others has grown by +12.0 MiB per step since step 9." in both
    assert "It has also held 300 MiB more than the others since the first step." in both
    assert "Within its steps it has also needed 512 MiB more than the others since the first step." in both
    assert "At its peak train.py:12 in forward holds 1.00 GiB, on the others 512 MiB" in both
    assert "Within its steps it has needed 512 MiB more than the others since the first step." in batch
    assert [(cause["kind"], cause["step"], cause["from_start"]) for cause in finding["causes"]] == [
        ("growth", 9, False),
        ("constant", 0, True),
        ("within_steps", 0, True),
    ]


def test_two_traces_without_command_are_compared_only_as_ranks_of_one_run(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 2)
    write_ranks(tmp_path / "later", 1, rank0=Rank(0, 2, begins=7200.0, process=7))
    ranks = ["a/alloctrace-0-1000.alloctrace", "a/alloctrace-1-1001.alloctrace"]
    runs = [ranks[0], "later/alloctrace-0-7.alloctrace"]

    error = run_analyze(tmp_path, *runs, status=2)

    advice = f"to compare two runs: {PROGRAM} diff {' '.join(runs)}"
    assert error.rstrip().endswith(f"error: the two traces are not ranks of one run; {advice}")
    assert "Both ranks look alike" in run_analyze(tmp_path, *ranks)
    assert "of another run" in run_analyze(tmp_path, "ranks", *runs)


def test_ranks_that_use_device_of_another_rank_are_reported(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 4, **{f"rank{n}": Rank(n, 4, also_on=0) for n in (1, 2, 3)})
    assert "OTHER DEVICE 3 of 4 ranks (1 to 3) also use cuda:0" in run_ranks(tmp_path / "a")


def test_truncated_rank_with_less_memory_is_no_outlier(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path / "a", 4, rank2=Rank(2, 4, steps=20_000, activations=64 * MIB))
    complete = paths[2].read_bytes()
    paths[2].write_bytes(complete[: len(complete) // 2])

    text = run_ranks(tmp_path / "a")

    assert "Rank 2 is truncated" in text and "DIFFERS" not in text and "No leak found on any rank" not in text


def test_processes_without_rank_numbers_are_separate_ranks(tmp_path: Path) -> None:
    for number in range(2):
        with alloctrace.enable(tmp_path / f"{number}.alloctrace", devices=("cpu",)):
            torch.ones(1000)
    ranks = alloctrace.load_ranks(tmp_path)
    assert ranks.world_size is None and ranks.missing == []
    assert set(ranks.table()["path"]) == {str(tmp_path / "0.alloctrace"), str(tmp_path / "1.alloctrace")}


def test_process_that_started_the_ranks_and_allocated_nothing_is_left_out(tmp_path: Path) -> None:
    with alloctrace.enable(tmp_path / "launcher.alloctrace", devices=("cpu",)):
        pass
    assert "record the program with alloctrace run --follow" in run_ranks(tmp_path)
    with alloctrace.enable(tmp_path / "rank.alloctrace", devices=("cpu",)):
        torch.ones(1000)
    names = "launcher.alloctrace", "rank.alloctrace"
    launcher, rank = (summarize_trace(str(tmp_path / name), session=name) for name in names)
    ranks = [dataclasses.replace(rank, session=f"{n}", process=n, parent_process=launcher.process) for n in (2, 3)]
    run, left_out = find_run([launcher, *ranks])
    assert run is not None and run.summaries == ranks
    assert [(trace.summary, trace.why) for trace in left_out] == [(launcher, "launcher")]


def test_ranks_of_restarted_run_are_left_out(tmp_path: Path) -> None:
    for begins, process in ((0.0, 100), (60.0, 200)):
        for number in range(4):
            Rank(number, 4, begins=begins, process=process + number).write(tmp_path)
    ranks = alloctrace.load_ranks(tmp_path)
    assert sorted(Path(path).name for path in ranks.table()["path"]) == [
        f"alloctrace-{n}-20{n}.alloctrace" for n in range(4)
    ]
    assert set(ranks.left_out.values()) == {"other run"} and len(ranks.left_out) == 4


def test_load_ranks_reports_unreadable_and_missing_traces(tmp_path: Path) -> None:
    with pytest.raises(alloctrace.TraceError, match="no traces"):
        alloctrace.load_ranks(tmp_path)
    with pytest.raises(alloctrace.TraceError, match="no trace or folder"):
        alloctrace.load_ranks([tmp_path / "gone"])
    (tmp_path / "a.alloctrace").write_text("no trace")
    assert str(alloctrace.load_ranks(tmp_path)).startswith("INCOMPLETE  a.alloctrace cannot be read")
    errors = run_analyze(tmp_path, ".", "--json", status=2)
    assert "a.alloctrace cannot be read: " in errors and errors.count("\n") == 1
    (tmp_path / "b.alloctrace").write_text("no trace")
    assert "; b.alloctrace cannot be read: " in run_analyze(tmp_path, ".", status=2)
    (tmp_path / "below").mkdir()
    Rank(0, 1).write(tmp_path / "below")
    for name in ("a", "b"):
        (tmp_path / f"{name}.alloctrace").unlink()
    with pytest.raises(alloctrace.TraceError, match="below"):
        alloctrace.load_ranks(tmp_path)


def test_ranks_exits_2_for_invalid_options_and_limits_csv_rows(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 2)
    for options, message in (
        (["--spool", "x"], "--spool belongs to one trace"),
        (["--jobs", "2", "--scheduler", "tcp://x"], "--jobs are processes of this machine"),
    ):
        assert message in run_analyze(tmp_path, "ranks", "a", *options, status=2)
    errors = run_analyze(tmp_path, "a", "--device", "cuda:7", status=2)
    assert "no device 'cuda:7' was recorded, only cuda, cpu" in errors and errors.count("\n") == 1
    header, *rows = run_analyze(tmp_path, "a", "--csv", "--device", "cpu", "--top", "1", "--jobs", "1").splitlines()
    assert header.startswith("rank,host,device,peak_bytes") and len(rows) == 1


def test_trace_is_unreadable_when_its_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_ranks(tmp_path, 4)
    worker_program = f"""
import os, signal
from pytorch_alloctrace.analysis.ranks import workers
read = workers.summarize_rank
def deadly(path, *rest):
    if path == {str(paths[2])!r}:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(path, *rest)
workers.summarize_rank = deadly
workers.serve()
"""
    monkeypatch.setattr(workers, "_PROGRAM", worker_program)

    ranks = alloctrace.load_ranks(tmp_path, jobs=2)

    assert ranks.missing == [2] and ranks.left_out == {str(paths[2]): "unreadable"}
    assert f"the process that read it was killed by signal {signal.SIGKILL:d}" in " ".join(str(ranks).split())


def test_ctrl_c_stops_worker_and_starts_no_other(tmp_path: Path) -> None:
    paths = list(map(str, write_ranks(tmp_path, 3)))
    ended, timed_out = threading.Event(), threading.Event()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # an earlier test may have changed it

    def interrupt(started: list[subprocess.Popen[bytes]]) -> None:
        while not started:
            time.sleep(0.01)
        started[0].send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(60):
            timed_out.set()
            started[0].kill()

    with pytest.raises(KeyboardInterrupt), reduction.Reduction(None, 1, keep=False) as ranks:
        started = ranks._workers._started
        threading.Thread(target=interrupt, args=[started]).start()
        ranks.read(paths)
    ended.set()
    signal.signal(signal.SIGINT, handler)
    assert not timed_out.is_set() and len(started) == 1


def test_pipe_in_folder_is_unreadable(tmp_path: Path) -> None:
    """Opening the pipe would block."""
    (trace,) = map(str, write_ranks(tmp_path, 1))
    for path in (tmp_path / "x.alloctrace", summary_path(trace)):
        os.mkfifo(path)
    ranks = alloctrace.load_ranks(tmp_path)
    assert ranks.left_out == {str(tmp_path / "x.alloctrace"): "unreadable"} and len(ranks.table()) == 1
    assert "it is a pipe or a device, not a file" in " ".join(str(ranks).split())


def test_load_ranks_works_in_script_without_main_guard(run_program, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_ranks(tmp_path / "a", 2)
    process = run_program("import pytorch_alloctrace as alloctrace; print(alloctrace.load_ranks('a'))")
    assert "Both ranks look alike" in process.stdout


KILLED = """
import os, signal, sys, torch, pytorch_alloctrace as alloctrace
alloctrace.enable("traces/", devices=("cpu",))
kept = [torch.ones(100_000) for _ in range(10)]
for _ in range(5):
    torch.ones(50_000); alloctrace.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_and_running_ranks_are_reported(run_program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with alloctrace.enable(f"{tmp_path}/traces/", devices=("cpu",)):
        run_program(KILLED, check=False, RANK="0", WORLD_SIZE="2")
        torch.ones(100_000)
        ranks = alloctrace.load_ranks(tmp_path / "traces")
    states = dict(zip(ranks.table()["rank"], ranks.table()["state"], strict=True))
    assert states == {0: "killed", 1: "running"}
    text = " ".join(str(ranks).split())
    assert "Rank 0 was killed" in text and "Rank 1 still runs" in text and "INCOMPLETE" not in text
    files = [path.name for path in (tmp_path / "traces").glob("*.summary.json")]
    assert len(files) == 1 and files[0].startswith("alloctrace-0-"), "only the killed process gets a summary file"


def test_distance_of_outlier_is_at_least_1() -> None:
    def distance(value: float, *others: float) -> float:
        values = {str(number): item for number, item in enumerate((value, *others))}
        return Spread.of("peak", values).distance(value)

    same = [1000.0 * MIB] * 7
    assert distance(1040.0 * MIB, *same) < 1 <= distance(1060.0 * MIB, *same), "5 % of the median"
    assert distance(940.0 * MIB, *same) <= -1
    spread = [1000.0 * MIB + 30 * MIB * number for number in range(-5, 6)]
    assert distance(1500.0 * MIB, *spread) < 1 <= distance(1800.0 * MIB, *spread), "5 times the usual spread"
    # Several outliers, fewer than half, do not hide one another.
    assert distance(9000.0 * MIB, *same, 9000.0 * MIB, 9000.0 * MIB) > 1
    # A difference below 1 MiB is ignored.
    assert distance(900_000.0, 0.0, 0.0, 0.0) < 1
    # Two ranks.
    assert distance(1040.0 * MIB, 1000.0 * MIB) < 1 <= distance(1060.0 * MIB, 1000.0 * MIB)


STEPS = np.arange(0, 400, 4)


def first_departure(levels: np.ndarray, noise: float = 0.0) -> tuple[int, bool]:
    random = np.random.default_rng(7)

    def noisy(values: np.ndarray) -> Levels:
        moved = values + noise * random.standard_normal(len(values))
        return Levels("cuda", STEPS, moved.astype(np.int64), moved.astype(np.int64))

    usual = np.full(len(STEPS), 2000.0 * MIB)
    result = find_departure(noisy(usual + levels), [noisy(usual) for _ in range(9)])
    assert result is not None
    return result.step, result.from_start


def test_first_departure_is_step_of_jump_or_start_of_slope() -> None:
    jump = np.where(STEPS >= 200, 600.0 * MIB, 0.0)
    slope = np.maximum(STEPS - 196.0, 0.0) * 5 * MIB
    assert first_departure(jump) == (200, False) and first_departure(slope) == (200, False)
    assert first_departure(jump + 40 * MIB) == (200, False), "despite a constant offset"
    assert first_departure(jump, 20 * MIB) == (200, False)
    assert abs(first_departure(slope, 20 * MIB)[0] - 200) <= 16
    for from_start in (np.full(len(STEPS), 600.0 * MIB), STEPS * 5.0 * MIB):
        assert first_departure(from_start) == (0, True) and first_departure(from_start, 20 * MIB) == (0, True)


@pytest.mark.parametrize("noise", [0.0, 2.0 * MIB])
def test_each_cause_of_a_difference_has_its_own_beginning(noise: float) -> None:
    random = np.random.default_rng(7)
    constant, growth = 300.0 * MIB, np.maximum(STEPS - 36.0, 0.0) * 5 * MIB
    jump, within = np.where(STEPS >= 200, 700.0 * MIB, 0.0), np.where(STEPS >= 120, 250.0 * MIB, 0.0)

    def find(live: np.ndarray, above: np.ndarray, is_ended: bool = False) -> list[tuple[object, ...]]:
        """Return the causes of a difference at the ends of steps and above these, in MiB; the last step if it ended."""

        def levels(live: np.ndarray, above: np.ndarray) -> Levels:
            live = 2000.0 * MIB + live + noise * random.standard_normal(len(STEPS))
            return Levels("cuda", STEPS, live.astype(np.int64), (live + 900 * MIB + above).astype(np.int64))

        departure = find_departure(levels(live, above), [levels(0 * STEPS, 0 * STEPS) for _ in range(9)])
        assert departure is not None
        causes = [dataclasses.replace(cause, bytes=round(cause.bytes / MIB)) for cause in departure.causes]
        assert all((cause.last_step is not None) == is_ended for cause in causes)
        return sorted(dataclasses.astuple(cause)[: 5 if is_ended else 4] for cause in causes)

    nothing = 0 * STEPS
    assert find(constant + growth, nothing) == [("constant", 0, True, 300), ("growth", 40, False, 5)]
    assert find(growth + jump, nothing) == [("growth", 40, False, 5), ("jump", 200, False, 700)]
    ended = np.minimum(growth, growth[STEPS == 120])
    assert find(ended, nothing, is_ended=True) == [("growth", 40, False, 5, 120)]
    assert find(constant + growth + jump, within) == [
        ("constant", 0, True, 300),
        ("growth", 40, False, 5),
        ("jump", 200, False, 700),
        ("within_steps", 120, False, 250),
    ]
    assert find(STEPS * 5.0 * MIB + jump, constant + nothing) == [
        ("growth", 0, True, 5),
        ("jump", 200, False, 700),
        ("within_steps", 0, True, 300),
    ]
    assert find(growth, nothing) == [("growth", 40, False, 5)], "not growth one step earlier and a jump back"
    early_jump, late_growth = np.where(STEPS >= 120, 600.0 * MIB, 0.0), np.maximum(STEPS - 196.0, 0.0) * 12 * MIB
    assert [cause[:3] for cause in find(early_jump + late_growth, nothing)] == [
        ("growth", 200, False),
        ("jump", 120, False),
    ]
    assert find(nothing, constant + nothing) == [("within_steps", 0, True, 300)]
    assert find(growth, nothing - 5 * MIB) == [("growth", 40, False, 5)], "allocated after the peak of the step"


def test_ranks_with_other_numbers_of_steps_are_compared_at_common_steps(tmp_path: Path) -> None:
    """The summary of the longest rank has every eighth step."""
    ranks = {"rank0": Rank(0, 3, steps=1000), "rank1": Rank(1, 3, steps=5000, larger_from=120)}
    write_ranks(tmp_path / "a", 3, **ranks, rank2=Rank(2, 3, steps=1000))
    data = json.loads(run_ranks(tmp_path / "a", "--json"))

    assert data["findings"][0]["ranks"] == [1] and data["findings"][0]["since_step"] == 120
