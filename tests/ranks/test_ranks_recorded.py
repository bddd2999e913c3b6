"""Each rank records into a file of its own, which says what rank it is: under torchrun, as users start it."""

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

LEAKS_ON_ONE = """
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


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)


def test_ranks_that_are_given_one_name_write_two_files_and_the_leak_of_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAKS_ON_ONE)
    command = with_cuda([sys.executable, *TORCHRUN, "train.py"], devices=2)
    run_python(tmp_path, command, check=True, timeout=600, environment={})
    headers = {path.name: alloctrace.load(path).header for path in sorted(tmp_path.glob("*.alloctrace"))}
    assert list(headers) == ["run-rank0.alloctrace", "run-rank1.alloctrace"]
    assert [(one["rank"], one["world_size"]) for one in headers.values()] == [("0", 2), ("1", 2)]
    assert len({one["environment"]["TORCHELASTIC_RUN_ID"] for one in headers.values()}) == 1
    data = json.loads(run_analyze(tmp_path, "ranks", ".", "--json"))
    leaks = [one for one in data["findings"] if one["kind"] == "leak"]
    assert [(one["ranks"], one["since_step"], one["site"]["line"]) for one in leaks] == [([1], 12, 15)]
    assert data["run"]["world_size"] == 2 and data["run"]["missing"] == [] and data["left_out"] == []


def paths_with(monkeypatch: pytest.MonkeyPatch, path: object, **environment: str) -> tuple[Path, dict[str, object]]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with alloctrace.enable(path, devices=("cpu",)) as session:  # type: ignore[arg-type]
        made = session.path
    return made, alloctrace.load(made).header


def test_names_of_files_and_a_file_in_place_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"alloctrace-0-{os.getpid()}.alloctrace"
    made, header = paths_with(monkeypatch, tmp_path)
    assert made == tmp_path / name and header["world_size"] is None and header["parent_process"] == os.getppid()
    made, _ = paths_with(monkeypatch, f"{tmp_path}/new/folder/")
    assert made == tmp_path / "new/folder" / name
    (tmp_path / "taken").write_text("")
    with pytest.raises(alloctrace.SessionError, match="cannot be created"):
        alloctrace.enable(f"{tmp_path}/taken/")
    # One rank alone has the name that it was given.
    made, _ = paths_with(monkeypatch, tmp_path / "a.alloctrace", RANK="0", WORLD_SIZE="1")
    assert made.name == "a.alloctrace"
    made, _ = paths_with(monkeypatch, tmp_path / "b.alloctrace", RANK="3", WORLD_SIZE="8")
    assert made.name == "b-rank3.alloctrace"
    made, _ = paths_with(monkeypatch, tmp_path / "c-{rank}.alloctrace", RANK="3", WORLD_SIZE="8")
    assert made.name == "c-3.alloctrace"


@pytest.mark.parametrize(
    ("rank", "size"),
    [("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")],
)
def test_other_launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: str, size: str) -> None:
    made, header = paths_with(monkeypatch, tmp_path / "a.alloctrace", **{rank: "5", size: "16"})
    assert made.name == "a-rank5.alloctrace" and (header["rank"], header["world_size"]) == ("5", 16)
    # A launcher in a launcher: the inner one counts.
    made, header = paths_with(monkeypatch, tmp_path / "b.alloctrace", RANK="1", WORLD_SIZE="2")
    assert made.name == "b-rank1.alloctrace" and (header["rank"], header["world_size"]) == ("1", 2)
