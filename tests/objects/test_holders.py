"""Referrer paths of tensors, in the notation of source code."""

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
from pytorch_alloctrace.objects.graphs import load_reader
from pytorch_alloctrace.objects.inventory import inventory
from pytorch_alloctrace.objects.object_scan import ScanResult, scan_objects

FILE = "test_holders.py"


def referrer(tensor: torch.Tensor) -> str:
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


def make_callback(output: torch.Tensor) -> Callable[[], torch.Tensor]:
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


def test_inventory_names_each_kind_of_reference_as_source_code() -> None:
    trainer, slotted = Trainer(), Slotted()
    waiting: queue.Queue[torch.Tensor] = queue.Queue()
    slotted.buffer = torch.ones(1)
    waiting.put(torch.ones(1))
    waiting.put(torch.ones(2))
    answers = [Answer(torch.ones(1)) for _ in range(4)]
    chosen = {torch.ones(1), torch.ones(2)}
    cache = {torch.ones(1): "one", torch.ones(2): "two"}
    bound = functools.partial(print, torch.ones(4), torch.ones(5))
    callbacks = [make_callback(torch.ones(2)) for _ in range(3)]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    linear = torch.nn.Linear(2, 2)
    linear(torch.ones(4, 2)).sum().backward()
    optimizer, exp_avg = adam_after_a_step()
    hooked, closed_over = linear_with_hook()
    streams = [stream() for _ in range(3)]
    errors, rows = raised_errors()
    array = torch.ones(3).numpy()
    expected = {
        trainer.predictions[12].data_ptr(): "trainer.predictions[12]: trainer.predictions (list of 46)",
        trainer.statistics["loss"][1].data_ptr(): (
            'trainer.statistics["loss"][1]: trainer.statistics["loss"] (deque of 3)'
        ),
        slotted.buffer.data_ptr(): "slotted.buffer: slotted.buffer",
        answers[2].logits.data_ptr(): "answers[2].logits: answers (list of 4)",
        next(iter(chosen)).data_ptr(): "chosen{...}: chosen (set of 2)",
        next(iter(cache)).data_ptr(): "cache{key}: cache (dict of 2)",
        bound.args[1].data_ptr(): "bound.args[1]: bound.args (tuple of 2)",
        callbacks[1]().data_ptr(): "callbacks[1] > output closed over by <lambda>(): callbacks (list of 3)",
        model[0].weight.data_ptr(): "model[0].weight: model[0].weight",
        model[1].running_mean.data_ptr(): "model[1].running_mean: model[1].running_mean",
        linear.weight.grad.data_ptr(): "linear.weight.grad: linear.weight.grad",
        exp_avg: 'optimizer.state[Parameter]["exp_avg"]: optimizer.state[Parameter] (dict of 3)',
        closed_over: (
            "hooked._forward_hooks[KEY] > seen closed over by <lambda>()[1]: "
            "seen in the closure of <lambda>(), a hook of hooked (list of 2)"
        ),
        next(streams[1]).data_ptr(): "streams[1] > hidden of the suspended stream(): streams (list of 3)",
        rows: "errors[1].__traceback__.tb_frame > rows of handle(): errors (list of 2)",
        waiting.queue[1].data_ptr(): "waiting.queue[1]: waiting.queue (deque of 2)",
        torch.from_numpy(array).data_ptr(): "array: array",
    }

    names = {item.storage.address: f"{item.name}: {item.holder}" for item in inventory(60.0).items}

    location = f", local of test_inventory_names_each_kind_of_reference_as_source_code() at {FILE}:"
    parts = {address: names[address].partition(location) for address in expected}
    texts = {at: re.sub(r"_forward_hooks\[\d+\]", "_forward_hooks[KEY]", text) for at, (text, *_) in parts.items()}
    assert texts == expected
    assert all(at == location for _, at, _ in parts.values())
    del optimizer, hooked, errors


def test_tensor_saved_by_graph_is_held_through_graph() -> None:
    x = torch.ones(3, requires_grad=True)
    activation = (x * 2).exp()
    kept, tensor = activation.sum(), activation.detach()
    del x, activation

    result = alloctrace.holders(tensor)

    assert result.chain is not None
    assert result.chain.through_graph and result.chain.holder == "kept"
    assert kept is not None and "through an autograd graph" in str(result)


def test_class_attributes_and_globals_are_named() -> None:
    tensor = Encoder().encode(4)
    assert referrer(tensor) == f"Encoder.encode(...): Encoder.encode (lru_cache of 1), class attribute in {FILE}"

    Encoder.encode.cache_clear()
    Server.sessions["a"] = Answer(torch.ones(1))
    tensor = Server.sessions["a"].logits
    assert referrer(tensor) == f'Server.sessions["a"].logits: Server.sessions (dict of 1), class attribute in {FILE}'

    Server.sessions.clear()
    assert referrer(GATHERED[0]) == f"GATHERED[0]: GATHERED (list of 1), global of {FILE}"


def test_holders_returns_one_chain_per_referrer() -> None:
    first = [torch.ones(1)]
    second = {"x": first[0], "y": torch.ones(2)}

    result = alloctrace.holders(first[0])

    assert sorted(chain.path for chain in result.chains) == ["first[0]", 'second["x"]']
    assert result.complete
    del second


def test_weak_reference_is_not_a_referrer() -> None:
    tensor = torch.ones(1)
    weak = weakref.WeakValueDictionary({1: tensor})

    assert referrer(tensor).startswith(f"tensor, local of test_weak_reference_is_not_a_referrer() at {FILE}:")
    del weak


def test_unreferenced_tensor_is_held_by_cpp_code() -> None:
    result = alloctrace.holders(torch.ones(1))
    assert result.chain is None
    assert str(result) == "held by C++ code, or by a value in use: nothing else in Python refers to it"


def test_uncollected_reference_cycle_is_garbage() -> None:
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
        result = alloctrace.holders(tensor)
    finally:
        gc.enable()

    assert result.chain is not None and result.chain.path == "Request.tree"
    assert "a reference cycle: garbage that the collector has not freed yet" in str(result)


def test_object_with_two_paths_to_tensor_is_not_garbage() -> None:
    """The object was reported as a reference cycle."""

    class Request:
        def __init__(self) -> None:
            self.inputs = [torch.ones(1)]
            self.outputs = list(self.inputs)

    request = Request()
    tensor = request.inputs[0]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(request))
    address = id(request)
    del request
    result = alloctrace.holders(tensor)
    restored = ctypes.cast(address, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(restored))

    assert result.chain is not None and result.chain.path.startswith("Request.")
    assert result.note == "held by C++ code, or by a value in use: nothing else in Python refers to that"


def test_variable_of_suspended_task_is_named() -> None:
    async def connection() -> None:
        buffer = torch.ones(9)
        buffers.append(weakref.ref(buffer))
        await asyncio.sleep(10)

    async def serve() -> str:
        tasks = [asyncio.create_task(connection()) for _ in range(3)]
        await asyncio.sleep(0.01)
        tensor = buffers[1]()
        assert tensor is not None
        text = referrer(tensor)
        for task in tasks:
            task.cancel()
        return text

    buffers: list[weakref.ref[torch.Tensor]] = []
    text = asyncio.run(serve())
    assert text.startswith("tasks[1] > buffer of the suspended connection(): tasks (list of 3), local of serve() at")


def test_variables_of_thread_are_named() -> None:
    def work() -> None:
        scratch = torch.ones(8)
        local.buffer = torch.ones(4)
        references.extend(map(weakref.ref, (scratch, local.buffer)))
        ready.set()
        finished.wait()

    local, references, ready, finished = threading.local(), [], threading.Event(), threading.Event()
    worker = threading.Thread(target=work, name="loader")
    worker.start()
    ready.wait()
    texts = [str(alloctrace.holders(reference())) for reference in references]
    finished.set()
    worker.join()

    assert texts[0].startswith("scratch, local of work() at") and texts[0].endswith("in thread loader")
    assert texts[1].startswith("local.buffer, local of test_variables_of_thread_are_named() at")


def crop(image: torch.Tensor, *, crops: list[torch.Tensor] = []) -> int:  # noqa: B006
    crops.append(image + 1)
    return len(crops)


def keep_error(error: Exception | None, tensor: torch.Tensor) -> Exception:
    try:
        raise ValueError
    except ValueError as raised:
        return raised


@pytest.mark.parametrize(
    ("kind", "holder", "through"),
    [
        ("default", "the default value of crops in crop() (list of 1), global of test_holders.py", "default value"),
        ("closure", "output in the closure of <lambda>(), local of ", "closure"),
        ("exception", "tensor of keep_error() in the traceback of kept, local of ", "exception"),
        ("partial", "kept.args (tuple of 1), local of", "partial"),
        ("thread-local", "kept.value, local of", "thread-local"),
        ("method", "kept.__self__.value, local of", ""),
        ("graph", "kept, local of", "autograd graph"),
        ("finalizer", "weakref.finalize._registry", "finalizer"),
    ],
)
def test_chain_describes_what_it_goes_through(kind: str, holder: str, through: str) -> None:
    tensor = torch.ones(2)
    kept: Any = None
    if kind == "default":
        crop(tensor)
        tensor = crop.__kwdefaults__["crops"][0]
    elif kind == "closure":
        kept = make_callback(tensor)
    elif kind == "exception":
        kept = keep_error(None, tensor)
    elif kind == "partial":
        kept = functools.partial(print, tensor)
    elif kind == "thread-local":
        kept = threading.local()
        kept.value = tensor
    elif kind == "method":
        kept = Kept(tensor).method
    elif kind == "finalizer":
        kept = Kept(torch.ones(0))
        weakref.finalize(kept, print, tensor).atexit = False
    else:
        activation = (torch.ones(2, requires_grad=True) * 2).exp()
        kept, tensor = activation.sum(), activation.detach()
        del activation

    chain = alloctrace.holders(tensor).chain

    assert chain is not None and str(chain).startswith(holder), str(chain)
    scopes = {"default": ("global", ""), "finalizer": ("class attribute", "")}
    scope = scopes.get(kind, ("local", "test_chain_describes_what_it_goes_through"))
    assert (chain.scope, chain.function, chain.through) == (*scope, through)
    assert chain.through_graph == (kind == "graph")
    crop.__kwdefaults__["crops"].clear()
    del kept


class Kept:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def method(self) -> None: ...


def test_holders_is_incomplete_after_time_limit() -> None:
    lists = [[n] for n in range(200_000)]
    last = [torch.ones(1)]
    lists.append(last)  # type: ignore[arg-type]
    tensor = last[0]
    del last

    result = alloctrace.holders(tensor, seconds=0.0)

    assert not result.complete
    assert "allow more seconds" in result.note or "there may be others" in result.note


def test_holders_raises_type_error_for_a_list() -> None:
    with pytest.raises(TypeError, match="takes a tensor, not list"):
        alloctrace.holders([])  # type: ignore[arg-type]


class RecordingObject:
    """Object that records each call of its methods."""

    calls: ClassVar[list[str]] = []

    def __init__(self, tensor: torch.Tensor) -> None:
        object.__setattr__(self, "tensor", tensor)

    def __getattribute__(self, name: str) -> Any:
        RecordingObject.calls.append(name)
        return object.__getattribute__(self, name)

    def _record_call(self, *_: object) -> Any:
        RecordingObject.calls.append("method")
        raise AssertionError("called")

    __getattr__ = __eq__ = __repr__ = __len__ = __iter__ = __bool__ = __contains__ = __getitem__ = _record_call
    __class__ = property(_record_call)  # type: ignore[assignment]

    def __hash__(self) -> int:
        return 1

    @property
    def other(self) -> object:
        return self._record_call()


class RecordingDict(dict):  # type: ignore[type-arg]
    items = keys = values = __iter__ = __getitem__ = __len__ = RecordingObject._record_call  # type: ignore[assignment]


class RecordingTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        RecordingObject.calls.append("__torch_function__")
        raise AssertionError("called")


def test_holders_calls_no_method_of_the_program() -> None:
    tensor = torch.ones(1)
    held = RecordingDict()
    dict.__setitem__(held, "one", RecordingObject(tensor))
    with torch._C.DisableTorchFunctionSubclass():
        other = torch.Tensor._make_subclass(RecordingTensor, torch.ones(2))
    RecordingObject.calls.clear()
    result = alloctrace.holders(tensor)
    alloctrace.holders(other)

    assert RecordingObject.calls == []
    assert result.chain is not None and result.chain.path == 'held["one"].tensor'


class RecordingMeta(type):
    """Metaclass that records each use of its classes."""

    calls: ClassVar[list[str]] = []
    is_recording = False

    def __getattribute__(cls, name: str) -> Any:
        if RecordingMeta.is_recording:
            RecordingMeta.calls.append(name)
        return super().__getattribute__(name)

    def _record_call(cls, *_: object) -> Any:
        RecordingMeta.calls.append("method")
        raise AttributeError("called")

    __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = _record_call  # type: ignore[assignment]


class RecordingTensorMeta(RecordingMeta, type(torch.Tensor)):  # type: ignore[misc]
    pass


def test_scans_call_no_method_of_a_metaclass(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = RecordingMeta("Recording", (), {})
    error = RecordingMeta("Error", (Exception,), {})()
    containers = [RecordingMeta("Container", (base,), {})() for base in (dict, list, tuple, set, collections.deque)]
    module = RecordingMeta("Module", (torch.nn.Linear,), {})(2, 2)
    optimizer = RecordingMeta("Optimizer", (torch.optim.SGD,), {})(module.parameters(), momentum=0.9)
    parameter = RecordingTensorMeta("Tensor", (torch.Tensor,), {})([1.0])
    keys = {RecordingMeta("Key", (int,), {})(1): [torch.ones(1)], (cls(),): [torch.ones(1)]}
    holder, other = cls(), cls()
    holder.tensors = [torch.ones(3) for _ in range(10)]
    other.function = functools.partial(max, torch.ones(2))
    containers[0]["items"] = {1: cls(), 2: torch.ones(3)}
    cycle = [torch.ones(2) for _ in range(10)]
    cycle.append(cls())  # type: ignore[arg-type]
    cycle[-1].cycle = cycle  # type: ignore[attr-defined]
    tensor = cycle[0]
    del cycle

    assert not load_reader()
    monkeypatch.setattr(RecordingMeta, "is_recording", True)
    scan = scan_objects(60.0)
    result = alloctrace.holders(holder.tensors[1])
    others = alloctrace.holders(parameter), alloctrace.holders(tensor), alloctrace.holders(keys[1][0])
    items = alloctrace.tensors()
    monkeypatch.setattr(RecordingMeta, "is_recording", False)

    assert RecordingMeta.calls == []
    assert scan.result is ScanResult.COMPLETE and items is not None
    assert result.chain is not None and result.chain.holder == "holder.tensors"
    assert all(other_result.chain is not None for other_result in others)
    del cls, error, containers, module, optimizer, other
    gc.collect()


def test_holders_does_not_unpack_saved_tensors() -> None:
    def refuse(_: object) -> torch.Tensor:
        raise AssertionError("unpacked")

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, refuse):
        y = x.exp().exp()

    assert alloctrace.holders(x).complete
    del y


def test_holders_keeps_nothing_alive_and_does_not_change_locals() -> None:
    def search() -> dict[str, object]:
        variables = locals()
        tensor = torch.ones(1)
        references.append(weakref.ref(tensor))
        assert alloctrace.holders(tensor).chain is not None
        if sys.version_info < (3, 13):
            assert "tensor" not in variables
        del tensor
        assert references[0]() is None
        return variables

    references: list[weakref.ref[torch.Tensor]] = []
    search()
    alloctrace.holders(GATHERED[0])  # the names in functions that store into holders are kept
    before = len(gc.get_objects())
    for _ in range(2):
        alloctrace.holders(GATHERED[0])

    assert len(gc.get_objects()) < before + 20


@pytest.mark.libraries
def test_variable_of_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "kept", [torch.ones(3)], raising=False)
    result = alloctrace.holders(json.kept[0], seconds=600)
    assert str(result) == "kept[0]: kept (list of 1), global of module json"


@pytest.mark.parametrize("cache_first", [True, False])
def test_container_is_named_before_attribute(cache_first: bool) -> None:
    tensor, slotted, cache = torch.ones(1), Slotted(), {}
    if cache_first:
        cache["answer"] = tensor
    slotted.buffer = tensor
    cache["answer"] = tensor

    assert referrer(tensor).startswith('cache["answer"]')
