"""What holds a tensor, by the name that a person would write."""

from __future__ import annotations

import asyncio
import collections
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


def said(tensor: torch.Tensor) -> str:
    """Without the line of the root, which moves as this file grows."""
    text = str(alloctrace.holders(tensor))
    return "".join(part for part in text.partition(f"at {HERE}:")[:2]) if f"at {HERE}:" in text else text


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


def in_an_attribute() -> tuple[object, torch.Tensor]:
    trainer = Trainer()
    return trainer, trainer.predictions[12]


def in_a_dict_of_deques() -> tuple[object, torch.Tensor]:
    trainer = Trainer()
    return trainer, trainer.statistics["loss"][1][:0]


def in_slots() -> tuple[object, torch.Tensor]:
    slotted = Slotted()
    slotted.buffer = torch.ones(1)
    return slotted, slotted.buffer


def in_a_dataclass() -> tuple[object, torch.Tensor]:
    answers = [Answer(torch.ones(1)) for _ in range(4)]
    return answers, answers[2].logits


def in_a_set() -> tuple[object, torch.Tensor]:
    chosen = {torch.ones(1), torch.ones(2)}
    return chosen, next(iter(chosen))


def as_a_key() -> tuple[object, torch.Tensor]:
    cache = {torch.ones(1): "one", torch.ones(2): "two"}
    return cache, next(iter(cache))


def in_a_partial() -> tuple[object, torch.Tensor]:
    bound = functools.partial(print, torch.ones(4), torch.ones(5))
    return bound, bound.args[1]


def closed_over() -> tuple[object, torch.Tensor]:
    def later(output: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: output

    callbacks = [later(torch.ones(2)) for _ in range(3)]
    return callbacks, callbacks[1]()


def a_parameter() -> tuple[object, torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    return model, model[0].weight


def a_buffer() -> tuple[object, torch.Tensor]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    return model, model[1].running_mean


def a_gradient() -> tuple[object, torch.Tensor]:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(4, 2)).sum().backward()
    assert model.weight.grad is not None
    return model, model.weight.grad


def state_of_an_optimizer() -> tuple[object, torch.Tensor]:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight])
    weight.sum().backward()
    optimizer.step()
    return optimizer, optimizer.state[weight]["exp_avg"]


def by_a_graph() -> tuple[object, torch.Tensor]:
    x = torch.ones(3, requires_grad=True)
    activation = (x * 2).exp()
    return activation.sum(), activation.detach()


def by_a_hook() -> tuple[object, torch.Tensor]:
    seen = [torch.ones(1), torch.ones(2)]
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: seen.append(torch.ones(3)))
    return model, seen[1]


def by_a_suspended_generator() -> tuple[object, torch.Tensor]:
    def stream() -> Iterator[torch.Tensor]:
        hidden = torch.zeros(8)
        while True:
            yield hidden[0]

    streams = [stream() for _ in range(3)]
    return streams, [next(one) for one in streams][1]


def by_an_exception() -> tuple[object, torch.Tensor]:
    found: list[torch.Tensor] = []

    def handle() -> None:
        rows = torch.zeros(8)
        found.append(rows)
        raise ValueError("refused")

    failures = []
    for _ in range(2):
        try:
            handle()
        except ValueError as error:
            failures.append(error)
    return failures, found.pop()


def by_a_queue() -> tuple[object, torch.Tensor]:
    waiting: queue.Queue[torch.Tensor] = queue.Queue()
    waiting.put(torch.ones(1))
    waiting.put(torch.ones(2))
    return waiting, waiting.queue[1]


def by_an_array() -> tuple[object, torch.Tensor]:
    array = torch.ones(3).numpy()
    return array, torch.from_numpy(array)


EXPECTED: dict[Callable[[], tuple[object, torch.Tensor]], str] = {
    in_an_attribute: "kept.predictions[12]: Trainer.predictions (list of 46) in kept",
    in_a_dict_of_deques: 'kept.statistics["loss"][1]: Trainer.statistics["loss"] (deque of 3) in kept',
    in_slots: "kept.buffer: Slotted.buffer in kept",
    in_a_dataclass: "kept[2].logits: kept (list of 4)",
    in_a_set: "kept{...}: kept (set of 2)",
    as_a_key: "kept{key}: kept (dict of 2)",
    in_a_partial: "kept[1]: kept (tuple of 2)",
    closed_over: "kept[1] > output closed over by <lambda>(): kept (list of 3)",
    a_parameter: "kept[0].weight: Linear.weight in kept[0]",
    a_buffer: "kept[1].running_mean: BatchNorm1d.running_mean in kept[1]",
    a_gradient: "kept.weight.grad: Parameter.grad in kept.weight",
    state_of_an_optimizer: 'kept.state[Parameter]["exp_avg"]: Adam.state[Parameter] (dict of 3) in kept',
    by_a_hook: (
        "kept._forward_hooks[KEY] > seen closed over by <lambda>()[1]: "
        "seen closed over by <lambda>() (list of 2) in kept._forward_hooks[KEY]"
    ),
    by_a_suspended_generator: "kept[1] > hidden of suspended stream(): kept (list of 3)",
    by_an_exception: "kept[1].__traceback__.tb_frame > rows of handle(): kept (list of 2)",
    by_a_queue: "kept.queue[1]: Queue.queue (deque of 2) in kept",
    by_an_array: "kept: kept",
}


def names_by_address(
    makes: list[Callable[[], tuple[object, torch.Tensor]]], addresses: dict[str, int]
) -> dict[int, str]:
    """Make one case a call, so that each has its own variable `kept`; one walk names all."""
    if not makes:
        return {item.storage.address: f"{item.name}: {item.holder}" for item in inventory(60.0).items}
    kept, tensor = makes[0]()
    addresses[makes[0].__name__] = tensor.untyped_storage().data_ptr()
    del tensor
    found = names_by_address(makes[1:], addresses)
    assert kept is not None
    return found


def test_each_kind_of_reference_is_named_as_a_person_would_write_it() -> None:
    addresses: dict[str, int] = {}

    names = names_by_address([*EXPECTED], addresses)

    where = f", local of names_by_address() at {HERE}:"
    found = {name: names[address].partition(where) for name, address in addresses.items()}
    texts = {name: re.sub(r"_forward_hooks\[\d+\]", "_forward_hooks[KEY]", text) for name, (text, *_) in found.items()}
    assert texts == {make.__name__: text for make, text in EXPECTED.items()}
    assert all(at == where for _, at, _ in found.values())


def test_graph() -> None:
    kept, tensor = by_a_graph()
    found = alloctrace.holders(tensor)
    assert found.chain is not None
    assert found.chain.through_graph and found.chain.holder == "kept"
    assert kept is not None and "through an autograd graph" in str(found)


def test_lru_cache_of_a_method() -> None:
    tensor = Encoder().encode(4)
    assert first(tensor) == f"Encoder.encode(...): Encoder.encode (lru_cache of 1), class attribute in {HERE}"
    Encoder.encode.cache_clear()


def test_class_attribute_and_global() -> None:
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
    assert said(tensor) == f"tensor, local of test_only_the_callers_variable() at {HERE}:"
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
        text = said(tensor)
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
    assert str(alloctrace.holders(json.kept[0])) == "kept[0]: kept (list of 1), global of module json"


@pytest.mark.parametrize("cache_first", [True, False])
def test_a_container_is_named_before_an_attribute(cache_first: bool) -> None:
    tensor, slotted, cache = torch.ones(1), Slotted(), {}
    if cache_first:
        cache["answer"] = tensor
    slotted.buffer = tensor
    cache["answer"] = tensor
    assert first(tensor).startswith('cache["answer"]')
