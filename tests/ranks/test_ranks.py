"""Many ranks: which differs, in which line, since which step; and what is missing is said."""

from __future__ import annotations

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
from pytorch_alloctrace.analysis.ranks.rank_summary import Levels
from pytorch_alloctrace.analysis.ranks.summary_file import summary_path

COUNT = 16


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 ranks on two hosts. 12 leaks from step 10 on, 5 ran out of memory, 14 has a cache from step 15 on; 3 is cut,
    8 damaged, 6 has no trace, that of 9 is of an earlier run; rank 2 has a child; one file is no trace."""
    folder = tmp_path_factory.mktemp("mixed")
    wrong: dict[int, dict[str, object]] = {
        12: {"leaks_from": 10},
        5: {"oom_at": 39},
        14: {"larger_from": 15},
        9: {"begins": -7200.0},
        3: {"steps": 20_000},
        8: {"steps": 20_000},
    }
    for number in range(COUNT):
        if number != 6:
            Rank(number, COUNT, host=f"node{number // 8}", **wrong.get(number, {})).write(folder)  # type: ignore[arg-type]
    cut, damaged = folder / "alloctrace-3-1003.alloctrace", folder / "alloctrace-8-1008.alloctrace"
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) * 7 // 10])
    flipped = bytearray(damaged.read_bytes())
    flipped[len(flipped) // 2] ^= 0xFF
    damaged.write_bytes(flipped)
    Rank(2, COUNT, begins=2.0, process=77, parent=1002).write(folder)
    (folder / "notes.alloctrace").write_text("of something else")
    return folder


def said_of(folder: Path, *options: str, status: int = 0) -> str:
    """Return what the command prints about a folder of traces: JSON as it is, text as one line."""
    shown = run_analyze(folder.parent, folder.name, *options, status=status)
    return shown if "--json" in options else " ".join(shown.split())


def test_what_is_missing_comes_first(mixed: Path) -> None:
    text = said_of(mixed)
    assert "LEAK train.py:20 in keep: +12.0 MiB per step on rank 12 alone (of 14)" in text
    assert "It departs from the others in step 15." in text
    assert text.startswith("INCOMPLETE 2 of 16 ranks have no trace here: 6 and 9.")
    before = text[: text.index("train.py")]
    assert "notes.alloctrace cannot be read" in before
    assert "Rank 3 is truncated: " in before and "What came after the break is unknown." in before
    assert "Rank 8 is corrupt: " in before and "Its figures are not compared." in before
    assert "of a process that a rank started: alloctrace-2-77.alloctrace" in text
    assert "of another run (2 h earlier): alloctrace-9-1009.alloctrace" in text


def test_each_rank_that_differs_is_named_with_its_line_and_step(mixed: Path) -> None:
    data = json.loads(said_of(mixed, "--json"))
    found = {one["kind"]: one for one in data["findings"]}
    assert [one["kind"] for one in data["findings"]] == ["oom", "leak", "differs"]
    assert found["oom"]["ranks"] == [5] and "an allocation of 4.00 GiB failed in step 39" in found["oom"]["title"]
    leak = found["leak"]
    assert leak["ranks"] == [12] and leak["site"]["line"] == 20 and leak["bytes_per_unit"] == 12 * MIB
    assert leak["since_step"] == 10 and not leak["since_start"]
    differs = found["differs"]
    assert differs["ranks"] == [14] and differs["site"]["line"] == 30 and differs["since_step"] == 15
    assert data["leaks"] == "found" and data["run"]["missing"] == [6, 9] and data["run"]["world_size"] == COUNT
    assert {row["rank"] for row in data["ranks"][:2]} == {5, 12}


def test_the_table(mixed: Path) -> None:
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
    # Every number is that of the single trace.
    trace = alloctrace.load(mixed / "alloctrace-12-1012.alloctrace")
    assert by_rank.loc[12, "reserved_bytes"] == trace.peak("reserved").bytes
    assert by_rank.loc[12, "leak_bytes_per_unit"] == sum(leak.bytes_per_unit for leak in trace.leaks().leaks)


def test_exit_statuses(mixed: Path, tmp_path: Path) -> None:
    said_of(mixed, "--fail", status=1)
    write_ranks(tmp_path / "healthy", 4)
    text = said_of(tmp_path / "healthy", "--fail")
    assert "OK All 4 ranks look alike: peak 1.50 GiB" in text and "OK No leak found on any rank." in text
    assert "DIFFERS" not in text and "INCOMPLETE" not in text
    (tmp_path / "healthy" / "alloctrace-2-1002.alloctrace").unlink()
    assert "1 of 4 ranks has no trace here: 2" in said_of(tmp_path / "healthy", "--fail", status=3)
    write_ranks(tmp_path / "short", 2, rank0=Rank(0, 2, steps=3), rank1=Rank(1, 2, steps=3))
    assert "Too short to judge leaks on all 2 ranks" in said_of(tmp_path / "short", "--fail", status=3)


def test_a_leak_of_all_ranks_is_said_once(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 8, **{f"rank{n}": Rank(n, 8, leaks_from=0, folder=f"/node{n}/job") for n in range(8)})
    text = said_of(tmp_path / "a", "--fail", status=1)
    assert text.count("LEAK") == 1 and "train.py:20 in keep: +12.0 MiB per step on all 8 ranks" in text
    assert "OK All 8 ranks look alike" in text


def test_ranks_that_differ_among_themselves_have_no_outlier(tmp_path: Path) -> None:
    """As with a pipeline, in which each has its own layers."""
    write_ranks(tmp_path / "a", 8, **{f"rank{n}": Rank(n, 8, weights=(512 + 256 * n) * MIB) for n in range(8)})
    text = said_of(tmp_path / "a")
    assert "No rank stands out, but they are not alike: peak from 1.00 GiB to 2.75 GiB" in text
    assert "look alike" not in text and "DIFFERS" not in text


def test_of_two_ranks_the_one_that_holds_more_is_named(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 2, rank1=Rank(1, 2, larger_from=5))
    data = json.loads(said_of(tmp_path / "a", "--json"))
    assert [(one["kind"], one["ranks"], one["since_step"]) for one in data["findings"]] == [("differs", [1], 5)]


def test_ranks_on_the_device_of_another(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 4, **{f"rank{n}": Rank(n, 4, also_on=0) for n in (1, 2, 3)})
    assert "OTHER DEVICE 3 of 4 ranks (1 to 3) also use cuda:0" in said_of(tmp_path / "a")


def test_a_rank_that_ended_early_does_not_differ_by_less(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path / "a", 4, rank2=Rank(2, 4, steps=20_000, activations=64 * MIB))
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[: len(whole) // 2])
    text = said_of(tmp_path / "a")
    assert "Rank 2 is truncated" in text and "DIFFERS" not in text and "No leak found on any rank" not in text


def test_processes_without_ranks_are_told_apart_by_their_files(tmp_path: Path) -> None:
    for number in range(2):
        with alloctrace.enable(tmp_path / f"{number}.alloctrace", devices=("cpu",)):
            torch.ones(1000)
    without = alloctrace.load_ranks(tmp_path)
    assert without.world_size is None and without.missing == []
    assert "Both ranks look alike" in str(without) or "not alike" in str(without)
    assert set(without.table()["path"]) == {str(tmp_path / "0.alloctrace"), str(tmp_path / "1.alloctrace")}


def test_a_restarted_run_is_another(tmp_path: Path) -> None:
    """The ranks of both have the same numbers, and files of their own."""
    for begins, process in ((0.0, 100), (60.0, 200)):
        for number in range(4):
            Rank(number, 4, begins=begins, process=process + number).write(tmp_path)
    ranks = alloctrace.load_ranks(tmp_path)
    assert sorted(Path(path).name for path in ranks.table()["path"]) == [
        f"alloctrace-{n}-20{n}.alloctrace" for n in range(4)
    ]
    assert set(ranks.left_out.values()) == {"other run"} and len(ranks.left_out) == 4


def test_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(alloctrace.TraceError, match="no traces"):
        alloctrace.load_ranks(tmp_path)
    with pytest.raises(alloctrace.TraceError, match="no trace or folder"):
        alloctrace.load_ranks([tmp_path / "gone"])
    (tmp_path / "a.alloctrace").write_text("no trace")
    assert str(alloctrace.load_ranks(tmp_path)).startswith("INCOMPLETE  a.alloctrace cannot be read")
    refused = run_analyze(tmp_path, ".", "--json", status=2)
    assert "a.alloctrace cannot be read: " in refused and refused.count("\n") == 1
    (tmp_path / "b.alloctrace").write_text("no trace")
    assert "; b.alloctrace cannot be read: " in run_analyze(tmp_path, ".", status=2)
    (tmp_path / "below").mkdir()
    Rank(0, 1).write(tmp_path / "below")
    for name in ("a", "b"):
        (tmp_path / f"{name}.alloctrace").unlink()
    with pytest.raises(alloctrace.TraceError, match="below"):
        alloctrace.load_ranks(tmp_path)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    write_ranks(tmp_path / "a", 2)
    for options, said in (
        (["--spool", "x"], "--spool is of one trace"),
        (["--jobs", "2", "--scheduler", "tcp://x"], "--jobs are processes of this machine"),
    ):
        assert said in run_analyze(tmp_path, "ranks", "a", *options, status=2)
    refused = run_analyze(tmp_path, "a", "--device", "cuda:7", status=2)
    assert "no device 'cuda:7' was recorded, only cuda, cpu" in refused and refused.count("\n") == 1
    header, *rows = run_analyze(tmp_path, "a", "--csv", "--device", "cpu", "--top", "1", "--jobs", "1").splitlines()
    assert header.startswith("rank,host,device,peak_bytes") and len(rows) == 1


def test_a_process_that_dies_takes_no_other_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_ranks(tmp_path, 4)
    dies = f"""
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
    monkeypatch.setattr(workers, "_PROGRAM", dies)
    ranks = alloctrace.load_ranks(tmp_path, jobs=2)
    assert ranks.missing == [2] and ranks.left_out == {str(paths[2]): "unreadable"}
    assert f"the process that read it was killed by signal {signal.SIGKILL:d}" in " ".join(str(ranks).split())


def test_ctrl_c_does_not_wait_for_a_trace_that_is_being_read(tmp_path: Path) -> None:
    """Nor does it go on to the next one."""
    paths = list(map(str, write_ranks(tmp_path, 3)))
    ended, waited = threading.Event(), threading.Event()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever an earlier test has left

    def interrupt(started: list[subprocess.Popen[bytes]]) -> None:
        while not started:
            time.sleep(0.01)
        started[0].send_signal(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)
        if not ended.wait(60):
            waited.set()
            started[0].kill()

    with pytest.raises(KeyboardInterrupt), reduction.Reduction(None, 1, keep=False) as ranks:
        started = ranks._workers._started
        threading.Thread(target=interrupt, args=[started]).start()
        ranks.read(paths)
    ended.set()
    signal.signal(signal.SIGINT, handler)
    assert not waited.is_set() and len(started) == 1


def test_a_pipe_in_the_folder_is_unreadable(tmp_path: Path) -> None:
    """It was opened, and that waited for ever."""
    (trace,) = map(str, write_ranks(tmp_path, 1))
    for path in (tmp_path / "x.alloctrace", summary_path(trace)):
        os.mkfifo(path)
    ranks = alloctrace.load_ranks(tmp_path)
    assert ranks.left_out == {str(tmp_path / "x.alloctrace"): "unreadable"} and len(ranks.table()) == 1
    assert "it is a pipe or a device, not a file" in " ".join(str(ranks).split())


def test_it_works_in_a_script_without_a_main_guard(run_program, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write_ranks(tmp_path / "a", 2)
    done = run_program("import pytorch_alloctrace as alloctrace; print(alloctrace.load_ranks('a'))")
    assert "Both ranks look alike" in done.stdout


# A trace that is being written, or was killed

KILLED = """
import os, signal, sys, torch, pytorch_alloctrace as alloctrace
alloctrace.enable("traces/", devices=("cpu",))
kept = [torch.ones(100_000) for _ in range(10)]
for _ in range(5):
    torch.ones(50_000); alloctrace.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_was_killed_or_still_runs(run_program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
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
    kept = [path.name for path in (tmp_path / "traces").glob("*.summary.json")]
    assert len(kept) == 1 and kept[0].startswith("alloctrace-0-"), "that of a running process would be stale at once"


# When is a rank different, and since when


def test_distance_of_outlier_is_at_least_1() -> None:
    def distance(value: float, *others: float) -> float:
        values = {str(number): one for number, one in enumerate((value, *others))}
        return Spread.of("peak", values).distance(value)

    same = [1000.0 * MIB] * 7
    assert distance(1040.0 * MIB, *same) < 1 <= distance(1060.0 * MIB, *same), "5 % of the median"
    assert distance(940.0 * MIB, *same) <= -1
    spread = [1000.0 * MIB + 30 * MIB * number for number in range(-5, 6)]
    assert distance(1500.0 * MIB, *spread) < 1 <= distance(1800.0 * MIB, *spread), "5 times the usual spread"
    # However many outliers there are, below half: they do not hide one another.
    assert distance(9000.0 * MIB, *same, 9000.0 * MIB, 9000.0 * MIB) > 1
    # Little of next to nothing is nothing.
    assert distance(900_000.0, 0.0, 0.0, 0.0) < 1
    # Two.
    assert distance(1040.0 * MIB, 1000.0 * MIB) < 1 <= distance(1060.0 * MIB, 1000.0 * MIB)


STEPS = np.arange(0, 400, 4)


def departure(levels: np.ndarray, noise: float = 0.0) -> tuple[int, bool]:
    random = np.random.default_rng(7)

    def noisy(values: np.ndarray) -> Levels:
        moved = values + noise * random.standard_normal(len(values))
        return Levels("cuda", STEPS, moved.astype(np.int64))

    usual = np.full(len(STEPS), 2000.0 * MIB)
    found = find_departure(noisy(usual + levels), [noisy(usual) for _ in range(9)])
    assert found is not None
    return found.step, found.from_start


def test_since_when_a_rank_differs() -> None:
    jump = np.where(STEPS >= 200, 600.0 * MIB, 0.0)
    slope = np.maximum(STEPS - 196.0, 0.0) * 5 * MIB
    assert departure(jump) == (200, False) and departure(slope) == (200, False)
    assert departure(jump + 40 * MIB) == (200, False), "though it never was quite like the others"
    assert departure(jump, 20 * MIB) == (200, False)
    assert abs(departure(slope, 20 * MIB)[0] - 200) <= 16
    for from_start in (np.full(len(STEPS), 600.0 * MIB), STEPS * 5.0 * MIB):
        assert departure(from_start) == (0, True) and departure(from_start, 20 * MIB) == (0, True)


def test_ranks_with_other_steps_have_those_in_common(tmp_path: Path) -> None:
    """One that has five times as many has every eighth step kept."""
    ranks = {"rank0": Rank(0, 3, steps=1000), "rank1": Rank(1, 3, steps=5000, larger_from=120)}
    write_ranks(tmp_path / "a", 3, **ranks, rank2=Rank(2, 3, steps=1000))
    data = json.loads(said_of(tmp_path / "a", "--json"))
    assert data["findings"][0]["ranks"] == [1] and data["findings"][0]["since_step"] == 120
