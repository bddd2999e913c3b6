"""Lookup of roles during a recording, and its absence of side effects."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.names import ROLES
from pytorch_alloctrace.reading.recorded import RecordedTrace


@pytest.fixture
def session(tmp_path: Path) -> Iterator[alloctrace.Session]:
    with alloctrace.enable(tmp_path / "t.alloctrace", devices=("cpu",)) as session:
        yield session


def named_roles(session: alloctrace.Session) -> list[tuple[str, str]]:
    """Return the name and role of each block, in order."""
    if session.is_recording:
        alloctrace.disable()
    trace = RecordedTrace(session.path)
    blocks = trace.replay.named_blocks()
    return [(trace.text(name), ROLES[role]) for name, role in zip(blocks["name"], blocks["role"], strict=True)]


def take_optimizer_step(parameter: torch.Tensor, **options: Any) -> torch.optim.Optimizer:
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=0.1, **options)
    optimizer.step()
    return optimizer


def test_optimizer_is_looked_up_at_doubling_steps_and_when_it_grows(session: alloctrace.Session) -> None:
    alloctrace.step()  # does not change when roles are looked up
    optimizer = take_optimizer_step(torch.ones(100, requires_grad=True))
    for _ in range(19):
        optimizer.step()
    optimizer.add_param_group({"params": [torch.ones(50, requires_grad=True)]})
    optimizer.step()

    roles = named_roles(session)
    # Before the 1st, at the 1st, 2nd, 4th, 8th and 16th step, and at the 21st.
    assert roles[:12] == [("", "parameter"), ("", "gradient")] * 6
    assert roles[12:].count(("", "parameter")) == 2


def test_parameters_are_noted_when_the_first_step_runs_out_of_memory(session: alloctrace.Session) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise torch.OutOfMemoryError

    parameter = torch.ones(100, requires_grad=True)
    parameter.grad = torch.ones(100)
    with pytest.raises(torch.OutOfMemoryError):
        Failing([parameter], lr=0.1).step()

    assert named_roles(session)[:2] == [("", "parameter"), ("", "gradient")]


def test_gradients_are_named_while_another_thread_is_in_backward(session: alloctrace.Session) -> None:
    started, release = threading.Event(), threading.Event()
    loss = torch.ones(3, requires_grad=True).sum()

    @loss.register_hook
    def wait(_: torch.Tensor) -> None:
        started.set()
        release.wait()

    thread = threading.Thread(target=loss.backward)
    thread.start()
    started.wait()
    take_optimizer_step(torch.ones(100, requires_grad=True))
    release.set()
    thread.join()

    assert {*named_roles(session)} == {("", "parameter"), ("", "gradient")}


def test_model_observed_before_the_recording_is_named(tmp_path: Path) -> None:
    model = torch.nn.Module()
    alloctrace.observe(model)

    with alloctrace.enable(tmp_path / "t.alloctrace", devices=("cpu",)) as session:
        model.weight = torch.nn.Parameter(torch.ones(100))

    assert named_roles(session) == [("weight", "parameter")]  # looked up when the recording ended


def test_moved_model_without_optimizer_and_scan_has_the_role_of_parameters(session: alloctrace.Session) -> None:
    # Casts to another type, as moves to a device do, allocate in Module._apply.
    model = torch.nn.Linear(100, 100).to(torch.float64)
    model(torch.ones(1, 100, dtype=torch.float64))
    del model
    alloctrace.disable()

    usage = alloctrace.load(session.path).usage(since=0, by="role").set_index("role")

    assert usage.loc["parameter", "total_bytes"] == (100 * 100 + 100) * 8


def test_role_lookup_allocates_nothing_and_keeps_no_object_alive(session: alloctrace.Session) -> None:
    model = torch.nn.Linear(30, 20)
    model.register_buffer("scale", torch.ones(20))
    optimizer = torch.optim.Adam(model.parameters())
    alloctrace.observe(model, optimizer)
    model(torch.ones(3, 30)).sum().backward()
    optimizer.step()
    copy = torch._lazy_clone(model.weight) if hasattr(torch, "_lazy_clone") else None

    alloctrace.mark("begin")
    session._roles.push_notes(optimizer)
    alloctrace.mark("end")
    references = [weakref.ref(referent) for referent in (model, optimizer, model.weight, model.weight.grad)]
    del model, optimizer, copy
    gc.collect()

    assert [reference() for reference in references] == [None] * 4
    assert {
        ("weight", "parameter"),
        ("bias", "parameter"),
        ("scale", "buffer"),
        ("weight.grad", "gradient"),
        ("bias.exp_avg", "optimizer state"),
        ("weight.exp_avg_sq", "optimizer state"),
    } <= {*named_roles(session)}
    kinds = session.load().events(since="mark:begin", until="mark:end")["kind"].astype(str)
    assert {*kinds} - {"memory", "garbage_collection"} == {"role", "mark"}  # these may occur in between


class TensorWithOwnCode(torch.Tensor):
    """Tensor whose attributes run code of the program."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        TensorWithOwnCode.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor", "ignore:The PyTorch API of nested")
def test_uncommon_tensors_are_named_without_running_their_code(session: alloctrace.Session) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    tensor = torch.ones(10).as_subclass(TensorWithOwnCode).requires_grad_()
    tensor.grad = torch.ones(10).as_subclass(TensorWithOwnCode)
    with FakeTensorMode():
        fake = torch.ones(10)
    state = {
        "fake": fake,
        "meta": torch.empty(10, device="meta"),
        "empty": torch.empty(0),
        "sparse": torch.eye(3).to_sparse(),
        "compressed": torch.eye(3).to_sparse_csr(),
        "list": [torch.ones(3), {"deep": torch.ones(4)}],
        "quantized": torch.quantize_per_tensor(torch.ones(5), 0.1, 0, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "number": 3,
        "object": object(),
    }
    optimizer = take_optimizer_step(tensor)
    optimizer.state["of no parameter"] = state

    calls = TensorWithOwnCode.calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session._roles.push_notes(optimizer)

    assert TensorWithOwnCode.calls == calls
    roles = [role for _, role in named_roles(session)]
    assert roles.count("parameter") == 3 and roles.count("optimizer state") >= 2 + 3 + 2


def test_views_of_one_block_get_one_role(session: alloctrace.Session) -> None:
    flat = torch.ones(100)
    parts = [flat[10:40].detach().requires_grad_(), flat[40:].detach().requires_grad_()]
    for part in parts:
        part.grad = torch.ones_like(part)

    torch.optim.SGD(parts, lr=0.1).step()
    alloctrace.disable()

    blocks = RecordedTrace(session.path).replay.named_blocks()
    parameters = blocks.take(blocks["role"] == ROLES.index("parameter"))
    assert {*parameters["requested_bytes"]} == {400} and {*parameters["address"]} == {flat.data_ptr()}


def test_steps_are_recorded_when_the_role_lookup_raises(session: alloctrace.Session) -> None:
    optimizer = torch.optim.SGD([torch.ones(100, requires_grad=True)], lr=0.1)
    del optimizer.state

    for _ in range(3):
        optimizer.step()
    alloctrace.disable()

    assert len(session.load().steps()) == 3 and named_roles(session) == []


def test_observe_raises_type_error_for_other_objects() -> None:
    with pytest.raises(TypeError, match=r"pass a torch\.nn\.Module"):
        alloctrace.observe(torch.ones(3))
    with pytest.raises(TypeError, match="pass a torch optimizer"):
        alloctrace.observe(torch.nn.Linear(2, 2), "adam")
