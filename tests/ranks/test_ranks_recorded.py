"""Recording under torchrun and other launchers: each rank writes a file with its rank in name and header."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from marked_programs import run_analyze
from running import run_python, with_cuda

import pytorch_alloctrace as alloctrace

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

LEAK_ON_RANK_1 = """
import os, torch, torch.distributed as dist, pytorch_alloctrace as alloctrace
alloctrace.enable("run.alloctrace", overwrite=True)
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("gloo")
model = torch.nn.Linear(500, 500).cuda()
kept = []
for number in range(40):
    model(torch.ones(100, 500, device="cuda")).mean().backward()
    ready = torch.ones(1)
    dist.all_reduce(ready)
    model.zero_grad()
    if rank == 1 and number >= 12:
        kept.append(torch.ones(1000, 1000, device="cuda"))
    alloctrace.step()
dist.destroy_process_group()
"""


LARGER_BATCH_ON_RANK_1 = """
import os, torch, pytorch_alloctrace as alloctrace
alloctrace.enable("traces/", devices=("cpu",))
weights = torch.ones(1_000_000)
for number in range(8):
    batch = torch.ones(1_000_000 * (1 + int(os.environ["RANK"])))
    squares = batch.square()
    alloctrace.step()
"""


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


def test_two_ranks_write_two_files_and_leak_of_rank_1_is_found(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAK_ON_RANK_1)
    command = with_cuda([sys.executable, *TORCHRUN, "train.py"], devices=2)
    run_python(tmp_path, command, check=True, timeout=600, environment={})
    headers = {path.name: alloctrace.load(path).header for path in sorted(tmp_path.glob("*.alloctrace"))}
    assert list(headers) == ["run-rank0.alloctrace", "run-rank1.alloctrace"]
    assert [(header["rank"], header["world_size"]) for header in headers.values()] == [("0", 2), ("1", 2)]
    assert len({header["environment"]["TORCHELASTIC_RUN_ID"] for header in headers.values()}) == 1
    data = json.loads(run_analyze(tmp_path, "ranks", ".", "--json"))
    leaks = [row for row in data["findings"] if row["kind"] == "leak"]
    assert [(leak["ranks"], leak["since_step"], leak["site"]["line"]) for leak in leaks] == [([1], 12, 15)]
    assert data["run"]["world_size"] == 2 and data["run"]["missing"] == [] and data["left_out"] == []


def record_with(monkeypatch: pytest.MonkeyPatch, path: object, **environment: str) -> tuple[Path, dict[str, object]]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with alloctrace.enable(path, devices=("cpu",)) as session:  # type: ignore[arg-type]
        trace_path = session.path
    return trace_path, alloctrace.load(trace_path).header


def test_line_and_source_of_a_difference_are_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LARGER_BATCH_ON_RANK_1)
    for rank in ("0", "1"):
        environment = {"RANK": rank, "WORLD_SIZE": "2"}
        run_python(tmp_path, [sys.executable, "train.py"], check=True, timeout=600, environment=environment)

    title, source, *sentences = run_analyze(tmp_path, "traces").partition("DIFFERS  ")[2].splitlines()

    assert title.startswith("Rank 1 on cpu: peak allocated") and source.strip().startswith("train.py:")
    assert source.endswith(
        (": squares = batch.square()", ': batch = torch.ones(1_000_000 * (1 + int(os.environ["RANK"])))')
    )
    text = " ".join(" ".join(sentences).split())
    assert "All lines that differ hold 2 times as much: a larger input or batch." in text


AVERAGE_ON_RANK_1 = """
import os, torch, pytorch_alloctrace as alloctrace
alloctrace.enable("traces/", devices=("cpu",))
weights = torch.ones(1_000_000)
average = weights.repeat(8) if os.environ["RANK"] == "1" else None
for number in range(8):
    weights = weights.square()
    alloctrace.step()
"""


def test_object_that_holds_the_difference_of_a_rank_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AVERAGE_ON_RANK_1)
    for rank in ("0", "1"):
        environment = {"RANK": rank, "WORLD_SIZE": "2"}
        run_python(tmp_path, [sys.executable, "train.py"], check=True, timeout=600, environment=environment)

    text = " ".join(run_analyze(tmp_path, "traces").split())

    assert "At its peak train.py:5 holds 30.5 MiB, on the other 0 B" in text and "`average` holds it." in text


def test_trace_file_name_depends_on_path_and_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"alloctrace-0-{os.getpid()}.alloctrace"
    written, header = record_with(monkeypatch, tmp_path)
    assert written == tmp_path / name and header["world_size"] is None and header["parent_process"] == os.getppid()
    written, _ = record_with(monkeypatch, f"{tmp_path}/new/folder/")
    assert written == tmp_path / "new/folder" / name
    (tmp_path / "taken").write_text("")
    with pytest.raises(alloctrace.SessionError, match="cannot be created"):
        alloctrace.enable(f"{tmp_path}/taken/")
    # A single rank uses the given name.
    written, _ = record_with(monkeypatch, tmp_path / "a.alloctrace", RANK="0", WORLD_SIZE="1")
    assert written.name == "a.alloctrace"
    written, _ = record_with(monkeypatch, tmp_path / "b.alloctrace", RANK="3", WORLD_SIZE="8")
    assert written.name == "b-rank3.alloctrace"
    written, _ = record_with(monkeypatch, tmp_path / "c-{rank}.alloctrace", RANK="3", WORLD_SIZE="8")
    assert written.name == "c-3.alloctrace"


@pytest.mark.parametrize(
    ("rank", "size"),
    [("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")],
)
def test_rank_is_read_from_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    written, header = record_with(monkeypatch, tmp_path / "a.alloctrace", **{rank: "5", size: "16"})
    assert written.name == "a-rank5.alloctrace" and (header["rank"], header["world_size"]) == ("5", 16)
    # The inner of two nested launchers counts.
    written, header = record_with(monkeypatch, tmp_path / "b.alloctrace", RANK="1", WORLD_SIZE="2")
    assert written.name == "b-rank1.alloctrace" and (header["rank"], header["world_size"]) == ("1", 2)
