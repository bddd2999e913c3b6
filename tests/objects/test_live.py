"""Live tensors of this process: `tensors()`, `changes()` and `footprint()`."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.live.footprint import _allocated
from pytorch_alloctrace.objects.inventory import Storage


class Trainer:
    def __init__(self) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32))
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.outputs: list[torch.Tensor] = []

    def step(self) -> None:
        output = self.net(torch.randn(8, 64))
        output.sum().backward()
        self.optimizer.step()
        self.outputs.append(output.detach())


def test_tensors_returns_shape_role_and_line_of_each_tensor(tmp_path: Path) -> None:
    with alloctrace.enable(tmp_path / "run.alloctrace", devices=("cpu",)):
        trainer = Trainer()
        for _ in range(3):
            trainer.step()
        view = trainer.outputs[1][2:]
        table = alloctrace.tensors()
    assert table.attrs["complete"]

    rows = {row["name"]: row for row in table.to_dict("records")}
    weight = rows["trainer.net[0].weight"]
    assert (weight["shape"], weight["dtype"], weight["device"]) == ((32, 64), "float32", "cpu")
    assert weight["requested_bytes"] == 8192
    assert weight["requires_grad"] and weight["role"] == "parameter"
    assert rows["trainer.net[0].weight.grad"]["role"] == "gradient"
    assert rows["trainer.net[1].running_mean"]["role"] == "buffer"

    state = table[table["name"].str.endswith('["exp_avg"]')]
    assert len(state) == 4 and set(state["role"]) == {"optimizer state"}

    output = rows["trainer.outputs[1]"]
    assert output["tensors"] == 2 and output["shape"] == (8, 32) and not output["role"]

    first = Trainer.step.__code__.co_firstlineno
    assert output["line"].endswith(f"test_live.py:{first + 1}") and output["step"] == 1 and output["age"] > 0
    assert len(view) == 6


def test_tensors_has_no_line_without_recording() -> None:
    kept = [torch.ones(7) for _ in range(3)]
    table = alloctrace.tensors()
    rows = table[table["name"].str.match(r"kept\[\d\]")]

    assert sorted(rows["name"]) == ["kept[0]", "kept[1]", "kept[2]"]
    assert set(rows["requested_bytes"]) == {28} and "line" not in table
    del kept


def test_changes_reports_added_and_removed_tensors() -> None:
    kept = [torch.ones(100), torch.ones(200)]
    alloctrace.changes()
    del kept[0]
    made = torch.zeros(300)

    changes = alloctrace.changes()

    assert list(zip(changes.added["name"], changes.added["shape"], strict=True)) == [("made", (300,))]
    assert list(zip(changes.removed["name"], changes.removed["requested_bytes"], strict=True)) == [("kept[0]", 400)]
    assert changes.change_bytes == 800
    assert str(alloctrace.changes()) == "no tensors added or removed"
    assert len(made) == 300


def test_changes_reports_both_tensors_when_memory_is_reused(tmp_path: Path) -> None:
    buffer = bytearray(400)
    with alloctrace.enable(tmp_path / "run.alloctrace", devices=("cpu",)):
        first = torch.frombuffer(buffer, dtype=torch.float32)
        buffer_address = first.data_ptr()
        alloctrace.changes()
        del first
        second = torch.frombuffer(buffer, dtype=torch.float32)
        changes = alloctrace.changes()

    assert list(changes.added["name"]) == ["second"] and list(changes.removed["name"]) == ["first"]
    assert second.data_ptr() == buffer_address


def test_changes_context_manager_reports_tensors_added_in_block() -> None:
    kept = [torch.ones(100)]
    with alloctrace.changes() as changes:
        kept.append(torch.ones(50))

    assert list(changes.added["name"]) == ["kept[1]"] and changes.removed.empty
    assert str(alloctrace.changes()) == "no tensors added or removed"


def test_changes_keeps_no_tensor_alive() -> None:
    kept = [torch.ones(100)]
    array = numpy.ones(100)
    kept.append(torch.from_numpy(array))
    array_reference = weakref.ref(array)
    del array
    changes = alloctrace.changes()
    tensor = weakref.ref(kept[0])
    kept.clear()

    assert tensor() is None and array_reference() is None and changes


def test_footprint_sums_parameters_gradients_state_and_buffers() -> None:
    trainer = Trainer()
    trainer.step()
    total = alloctrace.footprint(trainer.net, trainer.optimizer)
    parameters = (64 * 32 + 32 + 32 + 32) * 4
    # Adam stores two averages of each parameter, and a step count of 4 bytes.
    assert (total.parameter_bytes, total.gradient_bytes) == (parameters, parameters)
    assert total.state_bytes == 2 * parameters + 4 * 4
    assert total.buffer_bytes == 2 * 32 * 4 + 8

    bytes_by_kind = total.parameter_bytes + total.gradient_bytes + total.state_bytes + total.buffer_bytes
    assert total.requested_bytes == bytes_by_kind == total.allocated_bytes
    assert list(total.modules["module"]) == ["0", "1"] and list(total.modules["type"]) == ["Linear", "BatchNorm1d"]
    assert total.modules["requested_bytes"].sum() == total.requested_bytes
    assert str(total).splitlines()[-2].split()[0] == "total"

    tied = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert alloctrace.footprint(tied).parameter_bytes == 8 * 8 * 4


def test_footprint_rounds_sizes_on_cuda() -> None:
    assert _allocated(Storage(1, 1, 513, "cuda:0")) == 1024
    assert _allocated(Storage(1, 1, 513, "cpu")) == 513
