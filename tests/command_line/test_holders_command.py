"""The command `holders`: objects that held memory at an object scan, in text and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from marked_programs import run_analyze
from running import needs_cuda_build
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

pytestmark = needs_cuda_build
PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

object_scans.MAX_FINAL_SCAN_S = object_scans.FREE_SCAN_S = object_scans.MAX_SCAN_S = 60.0

class Trainer:
    def __init__(self):
        self.callbacks = {"step": [], "epoch": []}

def restore(trainer):
    checkpoint = {"model": [torch.ones(1 << 20, device="cuda") for _ in range(8)], "step": 7}
    trainer.callbacks["step"].append(lambda: checkpoint["step"])

def main(kept=400):
    trainer, history, mixed = Trainer(), [], []
    restore(trainer)
    for number in range(400):
        history.append(torch.ones(1000, device="cuda"))
        mixed.append((torch.ones(500, device="cuda"), torch.ones(100)))
        del mixed[:-kept]
        alloctrace.step()
    torch.empty(1 << 22, dtype=torch.uint8, device="cuda")
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cuda", "cpu"))
main()
alloctrace.enable("few.alloctrace", devices=("cuda", "cpu"))
main(20)
object_scans.ObjectScans._write_group = len
alloctrace.enable("unscanned.alloctrace", devices=("cuda",))
main()
"""
UNHELD_PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace

alloctrace.enable("run.alloctrace", devices=("cuda",))
weight = torch.ones(1024, 1024, device="cuda")
product = weight @ weight
for number in range(40):
    globals()[f"kept_{number}"] = torch.ones(1 << 18, device="cuda")
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(8)]).cuda()
model(torch.ones(1, 256, device="cuda")).sum().backward()
alloctrace.disable()
"""
SIMILAR_PROGRAM = """
import torch
import pytorch_alloctrace as alloctrace
from torch import nn

MIB = 1 << 18

class View(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.args = (torch.ones(size * MIB, device="cuda"),)

class Trainer:
    def __init__(self):
        self.net = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(5)]).cuda()
        self.critic = nn.Sequential(*[nn.Linear(768, 1024, bias=False) for _ in range(4)]).cuda()
        self.batch, self.target, self.loss, self.scale = (torch.ones(MIB, device="cuda") for _ in range(4))

def main():
    trainer = Trainer()
    views = nn.ModuleList([View(size) for size in (100, 5, 5, 5, 5)])
    named = nn.ModuleDict({"left": View(30), "right": View(20)})
    for layer in (*trainer.net, *trainer.critic):
        layer.weight.grad = torch.ones_like(layer.weight)
    del layer
    alloctrace.disable()

alloctrace.enable("run.alloctrace", devices=("cuda",))
main()
"""
MIB = 1 << 20
NO_SCAN = "Holder not found: no object scan ran."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run_source(tmp_path_factory.mktemp("holders"), PROGRAM, cuda=True)
    trace = alloctrace.load(folder / "run.alloctrace")
    until = trace.integrity.events * 9 // 10
    alloctrace.compact(folder / "run.alloctrace", folder / "compacted.alloctrace", until=until)
    return folder


def read_json(folder: Path, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run_analyze(folder, "holders", *arguments, "--json"))
    return answer


@pytest.mark.parametrize("name", ["run", "compacted"])
def test_holders_lists_objects_with_bytes_blocks_and_storing_line(folder: Path, name: str) -> None:
    text = " ".join(run_analyze(folder, "holders", f"{name}.alloctrace").split())

    assert "cuda:0 Object scan at " in text and " after the peak: 34.3 MiB live; 38.3 MiB at the peak" in text
    checkpoint = 'checkpoint["model"] in the closure of <lambda>() (list of 8), local of main() at'
    assert f"32.0 MiB 8 blocks {checkpoint}" in text
    assert 'reached by trainer.callbacks["step"][0] > checkpoint closed over by <lambda>()["model"][...]' in text
    assert "1.53 MiB 400 blocks history (list of 400), local of main() at program.py:" in text
    assert 'stored at program.py:20 in main: history.append(torch.ones(1000, device="cuda"))' in text


@pytest.mark.parametrize(("device", "size"), [("cuda:0", 2000), ("cpu", 400)])
def test_holders_counts_only_memory_of_the_device(folder: Path, device: str, size: int) -> None:
    exact, estimated = (
        read_json(folder, f"{name}.alloctrace", "--device", device, "--at", "step:390") for name in ("few", "run")
    )

    ((few,), (many,)) = (
        [row for row in answer["rows"] if row["holder"]["name"] == "mixed"] for answer in (exact, estimated)
    )
    assert few["bytes"] == size * few["blocks"] == size * 20 and not few["is_estimated"]
    assert many["bytes"] == pytest.approx(size * many["holder"]["containers"][0]["length"], rel=0.3)
    assert many["is_estimated"]
    assert exact["scan"]["device"] == device and exact["scan"]["distance_seconds"] < 0
    listed = sum(row["bytes"] for row in exact["rows"])
    assert listed + exact["scan"]["unheld_bytes"] == exact["scan"]["live_bytes"]


def test_holders_names_workspaces_and_lines_of_memory_that_no_object_held(tmp_path: Path) -> None:
    folder = run_source(tmp_path, UNHELD_PROGRAM, cuda=True)
    text = " ".join(run_analyze(folder, "holders", "run.alloctrace", "--at", "end").split())
    scan = read_json(folder, "run.alloctrace", "--at", "end")["scan"]

    [workspace] = [row for row in scan["unheld_sites"] if row["site"]["function"] == "cuBLAS workspace"]
    assert f"{workspace['bytes'] / MIB:.3g}" in text.partition(" MiB cuBLAS workspace: the library keeps it")[0][-6:]
    objects = 32  # the scan records no more
    unheld = f"{42 - objects + 4}.0 MiB in none of the recorded objects: 2.00 MiB in parameters of models, 2.00 MiB in"
    rest = "gradients (`.grad` of parameters); the rest is held by C++, by running calls, or by objects that the scan"
    assert f"{unheld} {rest} omitted {42 - objects}.0 MiB from program.py:9" in text
    assert scan["unheld_roles"] == {"parameter": 2 * MIB, "gradient": 2 * MIB}


def test_holders_selects_the_last_scan_up_to_a_position(folder: Path) -> None:
    trace = alloctrace.load(folder / "run.alloctrace")
    events = trace.holders()["seq"].unique().tolist()

    for event in events[2:5]:
        assert read_json(folder, "run.alloctrace", "--at", str(event))["scan"]["event"] == event
        assert read_json(folder, "run.alloctrace", "--at", str(event - 2))["scan"]["event"] < event
    error = run_analyze(folder, "holders", "run.alloctrace", "--at", "0", status=2)
    assert error.count("\n") == 1 and f"the first scan is at event {events[0]:,}" in error


def test_holders_sums_up_what_top_leaves_out(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "holders", "run.alloctrace", "--top", "1").split())

    assert "and 2 more objects with " in text and "history" not in text
    assert len(read_json(folder, "run.alloctrace", "--top", "1")["rows"]) == 1


def test_holders_states_why_a_trace_has_no_scan(folder: Path) -> None:
    text = " ".join(run_analyze(folder, "holders", "unscanned.alloctrace").split())
    answer = read_json(folder, "unscanned.alloctrace")

    assert text.startswith(NO_SCAN)
    assert (answer["scan"], answer["rows"], answer["no_holder"]) == (None, [], "no scan")


def test_holders_merges_similar_objects_of_one_variable_but_no_models_and_no_large_one(tmp_path: Path) -> None:
    folder = run_source(tmp_path, SIMILAR_PROGRAM, cuda=True)

    rows = read_json(folder, "run.alloctrace", "--at", "end")["rows"]
    text = " ".join(run_analyze(folder, "holders", "run.alloctrace", "--at", "end").split())

    assert [(row["holder"]["name"], row["objects"], row["role"], row["bytes"] // MIB) for row in rows] == [
        ("views[0].args", 1, "unknown", 100),
        ("named.left.args", 1, "unknown", 30),
        ("views[...].args", 4, "unknown", 20),
        ("named.right.args", 1, "unknown", 20),
        ("trainer.critic", 4, "parameter", 12),
        ("trainer.critic", 4, "gradient", 12),
        ("trainer.net", 5, "parameter", 5),
        ("trainer.net", 5, "gradient", 5),
        ("trainer", 4, "unknown", 4),
    ]
    assert "20.0 MiB 4 blocks views[...].args (4 objects), local of main() at program.py:" in text
    assert "5.00 MiB 5 blocks trainer.net (5 parameters), local of main() at" in text
    assert "5.00 MiB 5 blocks trainer.net (5 gradients), local of main() at" in text
