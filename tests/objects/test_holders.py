"""What holds a tensor, by the name that a person would write."""

from __future__ import annotations

import asyncio
import collections
import ctypes
import functools
import gc
import json
import queue
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects.inventory import inventory

HERE = "test_holders.py"


def first(tensor: torch.Tensor) -> str:
    return str(alloctrace.holders(tensor)).partition("; also")[0]


class Trainer:
    def __init__(self) -> None:
        self.predictions = [torch.zeros(3) for _ in range(46)]
        self.statistics = {"loss": collections.deque(torch.zeros(1) for _ in range(3))}


class Server:
    sessions: ClassVar[dict[str, Any]] = {}


class Slotted:
    __slots__ = ("buffer",)
    buffer: torch.Tensor


@dataclass
class Answer:
    logits: torch.Tensor


class Encoder:
    @functools.lru_cache  # noqa: B019
    def encode(self, size: int) -> torch.Tensor:
        return torch.ones(size)


GATHERED = [torch.ones(2)]


def later(output: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: output


def stream() -> Iterator[torch.Tensor]:
    hidden = torch.zeros(8)
    while True:
        yield hidden[0]


def linear_with_hook() -> tuple[torch.nn.Module, int]:
    """Return a module and the address of a tensor that its hook closes over."""
    seen = [torch.ones(1), torch.ones(2)]
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: seen.append(torch.ones(3)))
    return model, seen[1].data_ptr()


def raised_errors() -> tuple[list[ValueError], int]:
    """Return two errors and the address of a local tensor of the function that raised the second."""
    addresses: list[int] = []

    def handle() -> None:
        rows = torch.zeros(8)
        addresses.append(rows.data_ptr())
        raise ValueError("refused")

    errors = []
    for _ in range(2):
        try:
            handle()
        except ValueError as error:
            errors.append(error)
    return errors, addresses[1]


def adam_after_a_step() -> tuple[torch.optim.Optimizer, int]:
    """Return an optimizer and the address of a tensor of its state."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    return optimizer, optimizer.state[weight]["exp_avg"].data_ptr()


def test_inventory_names_each_kind_of_reference_as_a_person_would_write_it() -> None:
    trainer, slotted = Trainer(), Slotted()
    waiting: queue.Queue[torch.Tensor] = queue.Queue()
    slotted.buffer = torch.ones(1)
    waiting.put(torch.ones(1))
    waiting.put(torch.ones(2))
    answers = [Answer(torch.ones(1)) for _ in range(4)]
    chosen = {torch.ones(1), torch.ones(2)}
    cache = {torch.ones(1): "one", torch.ones(2): "two"}
    bound = functools.partial(print, torch.ones(4), torch.ones(5))
    callbacks = [later(torch.ones(2)) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    linear = torch.nn.Linear(2, 2)
    linear(torch.ones(4, 2)).sum().backward()
    optimizer, exp_avg = adam_after_a_step()
    hooked, closed_over = linear_with_hook()
    streams = [stream() for _ in range(3)]
    errors, rows = raised_errors()
    array = torch.ones(3).numpy()
    expected = {
        trainer.predictions[12].data_ptr(): "trainer.predictions[12]: Trainer.predictions (list of 46) in trainer",
        trainer.statistics["loss"][1].data_ptr(): (
            'trainer.statistics["loss"][1]: Trainer.statistics["loss"] (deque of 3) in trainer'
        ),
        slotted.buffer.data_ptr(): "slotted.buffer: Slotted.buffer in slotted",
        answers[2].logits.data_ptr(): "answers[2].logits: answers (list of 4)",
        next(iter(chosen)).data_ptr(): "chosen{...}: chosen (set of 2)",
        next(iter(cache)).data_ptr(): "cache{key}: cache (dict of 2)",
        bound.args[1].data_ptr(): "bound[1]: bound (tuple of 2)",
        callbacks[1]().data_ptr(): "callbacks[1] > output closed over by <lambda>(): callbacks (list of 3)",
        model[0].weight.data_ptr(): "model[0].weight: Linear.weight in model[0]",
        model[1].running_mean.data_ptr(): "model[1].running_mean: BatchNorm1d.running_mean in model[1]",
        linear.weight.grad.data_ptr(): "linear.weight.grad: Parameter.grad in linear.weight",
        exp_avg: 'optimizer.state[Parameter]["exp_avg"]: Adam.state[Parameter] (dict of 3) in optimizer',
        closed_over: (
            "hooked._forward_hooks[KEY] > seen closed over by <lambda>()[1]: "
            "seen closed over by <lambda>() (list of 2) in hooked._forward_hooks[KEY]"
        ),
        next(streams[1]).data_ptr(): "streams[1] > hidden of suspended stream(): streams (list of 3)",
        rows: "errors[1].__traceback__.tb_frame > rows of handle(): errors (list of 2)",
        waiting.queue[1].data_ptr(): "waiting.queue[1]: Queue.queue (deque of 2) in waiting",
        torch.from_numpy(array).data_ptr(): "array: array",
    }

    names = {item.storage.address: f"{item.name}: {item.holder}" for item in inventory(60.0).items}

    where = f", local of test_inventory_names_each_kind_of_reference_as_a_person_would_write_it() at {HERE}:"
    parts = {address: names[address].partition(where) for address in expected}
    texts = {at: re.sub(r"_forward_hooks\[\d+\]", "_forward_hooks[KEY]", text) for at, (text, *_) in parts.items()}
    assert texts == expected
    assert all(at == where for _, at, _ in parts.values())
    del optimizer, hooked, errors


def test_tensor_of_a_graph_is_held_through_it() -> None:
    x = torch.ones(3, requires_grad=True)
    activation = (x * 2).exp()
    kept, tensor = activation.sum(), activation.detach()
    del x, activation
    found = alloctrace.holders(tensor)
    assert found.chain is not None
    assert found.chain.through_graph and found.chain.holder == "kept"
    assert kept is not None and "through an autograd graph" in str(found)


def test_class_attributes_and_global() -> None:
    tensor = Encoder().encode(4)
    assert first(tensor) == f"Encoder.encode(...): Encoder.encode (lru_cache of 1), class attribute in {HERE}"
    Encoder.encode.cache_clear()
    Server.sessions["a"] = Answer(torch.ones(1))
    tensor = Server.sessions["a"].logits
    assert first(tensor) == f'Server.sessions["a"].logits: Server.sessions (dict of 1), class attribute in {HERE}'
    Server.sessions.clear()
    assert first(GATHERED[0]) == f"GATHERED[0]: GATHERED (list of 1), global of {HERE}"


def test_several_holders() -> None:
    first = [torch.ones(1)]
    second = {"x": first[0], "y": torch.ones(2)}
    found = alloctrace.holders(first[0])
    assert sorted(chain.path for chain in found.chains) == ["first[0]", 'second["x"]']
    assert found.complete
    del second


def test_only_the_callers_variable() -> None:
    tensor = torch.ones(1)
    weak = weakref.WeakValueDictionary({1: tensor})
    assert first(tensor).startswith(f"tensor, local of test_only_the_callers_variable() at {HERE}:")
    del weak


def test_nothing_in_python() -> None:
    found = alloctrace.holders(torch.ones(1))
    assert found.chain is None
    assert str(found) == "held by C++ code, or by a value in use: nothing else in Python refers to it"


def test_garbage() -> None:
    class Request:
        def __init__(self) -> None:
            self.tree = torch.ones(1)
            self.myself = self

    gc.collect()
    gc.disable()
    try:
        request = Request()
        tensor = request.tree
        del request
        found = alloctrace.holders(tensor)
    finally:
        gc.enable()
    assert found.chain is not None and found.chain.path == "Request.tree"
    assert "a reference cycle: garbage that the collector has not freed yet" in str(found)


def test_an_object_with_two_ways_down_to_the_tensor_is_no_garbage() -> None:
    """It was called a reference cycle."""

    class Request:
        def __init__(self) -> None:
            self.inputs = [torch.ones(1)]
            self.outputs = list(self.inputs)

    request = Request()
    tensor = request.inputs[0]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
    address = id(request)
    del request
    found = alloctrace.holders(tensor)
    again = ctypes.cast(address, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(again))
    assert found.chain is not None and found.chain.path.startswith("Request.")
    assert found.note == "held by C++ code, or by a value in use: nothing else in Python refers to that"


def test_task() -> None:
    async def connection() -> None:
        buffer = torch.ones(9)
        seen.append(weakref.ref(buffer))
        await asyncio.sleep(10)

    async def serve() -> str:
        tasks = [asyncio.create_task(connection()) for _ in range(3)]
        await asyncio.sleep(0.01)
        tensor = seen[1]()
        assert tensor is not None
        text = first(tensor)
        for task in tasks:
            task.cancel()
        return text

    seen: list[weakref.ref[torch.Tensor]] = []
    text = asyncio.run(serve())
    assert text.startswith("tasks[1] > buffer of suspended connection(): tasks (list of 3), local of serve() at")


def test_variable_of_a_thread() -> None:
    def work() -> None:
        scratch = torch.ones(8)
        local.buffer = torch.ones(4)
        seen.extend(map(weakref.ref, (scratch, local.buffer)))
        ready.set()
        done.wait()

    local, seen, ready, done = threading.local(), [], threading.Event(), threading.Event()
    worker = threading.Thread(target=work, name="loader")
    worker.start()
    ready.wait()
    texts = [str(alloctrace.holders(one())) for one in seen]
    done.set()
    worker.join()
    assert texts[0].startswith("scratch, local of work() at") and texts[0].endswith("in thread loader")
    assert "local.buffer: local.buffer in local" in texts[1].replace("_local", "local")


def test_gives_up() -> None:
    many = [[n] for n in range(200_000)]
    last = [torch.ones(1)]
    many.append(last)  # type: ignore[arg-type]
    tensor = last[0]
    del last
    found = alloctrace.holders(tensor, seconds=0.0)
    assert not found.complete
    assert "allow more seconds" in found.note or "there may be others" in found.note


def test_refuses_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="takes a tensor, not list"):
        alloctrace.holders([])  # type: ignore[arg-type]


class Touchy:
    """Does not want to be touched."""

    touched: ClassVar[list[str]] = []

    def __init__(self, tensor: torch.Tensor) -> None:
        object.__setattr__(self, "tensor", tensor)

    def __getattribute__(self, name: str) -> Any:
        Touchy.touched.append(name)
        return object.__getattribute__(self, name)

    def _touch(self, *_: object) -> Any:
        Touchy.touched.append("method")
        raise AssertionError("touched")

    __getattr__ = __eq__ = __repr__ = __len__ = __iter__ = __bool__ = __contains__ = __getitem__ = _touch
    __class__ = property(_touch)  # type: ignore[assignment]

    def __hash__(self) -> int:
        return 1

    @property
    def other(self) -> object:
        return self._touch()


class TouchyDict(dict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __getitem__ = __len__ = Touchy._touch  # type: ignore[assignment]


class TouchyTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        Touchy.touched.append("__torch_function__")
        raise AssertionError("touched")


def test_runs_no_code_of_the_program() -> None:
    tensor = torch.ones(1)
    held = TouchyDict()
    dict.__setitem__(held, "one", Touchy(tensor))
    with torch._C.DisableTorchFunctionSubclass():
        other = torch.Tensor._make_subclass(TouchyTensor, torch.ones(2))
    Touchy.touched.clear()
    found = alloctrace.holders(tensor)
    alloctrace.holders(other)
    assert Touchy.touched == []
    assert found.chain is not None and found.chain.path == 'held["one"].tensor'


def test_unpacks_nothing() -> None:
    def refuse(_: object) -> torch.Tensor:
        raise AssertionError("unpacked")

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, refuse):
        y = x.exp().exp()
    assert alloctrace.holders(x).complete
    del y


def test_keeps_nothing_alive_and_leaves_locals_alone() -> None:
    def work() -> dict[str, object]:
        mine = locals()
        tensor = torch.ones(1)
        seen.append(weakref.ref(tensor))
        assert alloctrace.holders(tensor).chain is not None
        if sys.version_info < (3, 13):
            assert "tensor" not in mine
        del tensor
        assert seen[0]() is None
        return mine

    seen: list[weakref.ref[torch.Tensor]] = []
    work()
    before = len(gc.get_objects())
    for _ in range(2):
        alloctrace.holders(GATHERED[0])
    assert len(gc.get_objects()) < before + 20


@pytest.mark.libraries
def test_a_variable_of_a_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "kept", [torch.ones(3)], raising=False)
    held = alloctrace.holders(json.kept[0], seconds=600)
    assert str(held) == "kept[0]: kept (list of 1), global of module json"


@pytest.mark.parametrize("cache_first", [True, False])
def test_a_container_is_named_before_an_attribute(cache_first: bool) -> None:
    tensor, slotted, cache = torch.ones(1), Slotted(), {}
    if cache_first:
        cache["answer"] = tensor
    slotted.buffer = tensor
    cache["answer"] = tensor
    assert first(tensor).startswith('cache["answer"]')
