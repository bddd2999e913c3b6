"""Object scans of leaking programs (tests/support/leak_cases_*.py): groups of tensors by referrer path."""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import queue
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leak_cases_serving
import pytest
import torch
from leak_corpus import LEAKING, cases

from pytorch_alloctrace.objects import object_scan, walk
from pytorch_alloctrace.objects.chains import THREAD
from pytorch_alloctrace.objects.graphs import load_reader
from pytorch_alloctrace.objects.groups import Group
from pytorch_alloctrace.objects.object_scan import scan_objects

EXPECTED = {
    "loss_kept_with_its_graph": "kept (list of 60)",
    "validation_loss_summed_without_no_grad": "kept",
    "forward_hook_appends_to_a_closure": "kept (list of 60)",
    "metrics_object": "kept.errors (list of 60)",
    "parameters_added_and_never_removed": "kept.param_groups (list of 61)",
    "hook_registered_in_every_step": "kept[2].weight._backward_hooks (OrderedDict of 60)",
    "two_leaks_of_different_rate": "kept[0] (list of 80)",
    "cache_by_step_number": "kept (dict of 60)",
    "exceptions_keep_their_frames": "kept (list of 60)",
    "callbacks_keep_what_they_close_over": "kept (list of 150)",
    "lru_cache_without_a_bound_keyed_by_tensors": "kept (lru_cache of 60)",
    "generators_never_finished": "kept (list of 60)",
    "coroutines_that_wait_for_ever": "kept (list of 150)",
    "queue_never_drained": "kept.queue (deque of 150)",
}


def first_group() -> Group:
    assert not load_reader()
    return scan_objects(10.0).groups[0]


class Producer:
    """Thread that has filled a queue, and ends when it is told to."""

    def __init__(self) -> None:
        self.queue: queue.Queue[torch.Tensor] = queue.Queue(maxsize=12)
        self.has_filled, self.stop = threading.Event(), threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for _ in range(12):
            self.queue.put(torch.ones(64))
        self.has_filled.set()
        self.stop.wait()


def test_queue_of_a_running_thread_is_named_by_the_object_of_the_thread() -> None:
    producer = Producer()
    producer.has_filled.wait()
    stop = producer.stop
    del producer

    group = next(group for group in scan_objects(10.0).groups if group.chain.through == THREAD)
    stop.set()

    assert str(group) == "Producer.queue.queue (deque of 12), of a thread that has not ended"
    line = Path(__file__).read_text().partition("self.queue.put(")[0].count("\n") + 1
    assert (group.chain.store.function, group.chain.store.line) == ("Producer._run", line)


def test_exception_is_named_instead_of_the_fullest_container_in_its_traceback() -> None:
    def fail() -> None:
        skips = [torch.ones(64) for _ in range(9)]
        raise ValueError(len(skips))

    trials = []
    for _ in range(3):
        try:
            fail()
        except ValueError as error:
            trials.append({"error": error})
    group = first_group()

    assert str(group).startswith("trials (list of 3), local of test_exception_is_named")
    assert group.count == 3 * 9


def test_container_whose_tensors_all_belong_to_one_part_is_scanned() -> None:
    state = {"name": "a", "step": 3, "rate": 0.1, "scale": 2.0, "moments": [torch.ones(64) for _ in range(3)]}

    assert str(first_group()).startswith('state["moments"] (list of 3)')
    del state


@pytest.mark.parametrize("name", EXPECTED)
def test_leak_is_named(name: str) -> None:
    kept = cases(LEAKING)[name]("cpu")
    group = first_group()

    assert str(group).startswith(f"{EXPECTED[name]}, local of test_leak_is_named() at test_object_scan.py:"), str(group)
    assert group.count == len(group.addresses) or group.count > 128
    del kept
    gc.collect()


class StoringExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.stored = (value.exp(), value.sin())
        return ctx.stored[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * ctx.stored[0]


class Scaling:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        tensor.register_hook(self.scale)

    def scale(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.tensor.norm()


def make_gradient_cycle(weight: torch.Tensor) -> None:
    value = torch.ones(100, requires_grad=True)
    (value * weight).exp().sum().backward(create_graph=True)
    weight.grad = None


def make_context_cycle(weight: torch.Tensor) -> None:
    StoringExp.apply(weight * 2)


def make_hook_cycle(weight: torch.Tensor) -> None:
    Scaling(weight * 2)


def make_hook_cycle_in_closure(weight: torch.Tensor) -> None:
    value = weight * 2
    value.register_hook(lambda gradient: gradient / value.norm())


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    ("make_cycle", "name", "through", "line"),
    [
        (make_gradient_cycle, "tensor.grad", "gradient", ""),
        (make_context_cycle, "ctx.stored of StoringExp", "ctx", "ctx.stored = (value.exp(), value.sin())"),
        (make_hook_cycle, "Tensor._backward_hooks", "tensor hook", "tensor.register_hook(self.scale)"),
        (
            make_hook_cycle_in_closure,
            "Tensor._backward_hooks",
            "tensor hook",
            "value.register_hook(lambda gradient: gradient / value.norm())",
        ),
    ],
)
def test_cycle_of_tensor_and_autograd_is_found(
    make_cycle: Callable[[torch.Tensor], None], name: str, through: str, line: str
) -> None:
    assert not load_reader()
    gc.collect()
    gc.disable()
    weight = torch.ones(100, requires_grad=True)
    for _ in range(40):
        make_cycle(weight)

    scan = scan_objects(10.0)

    gc.enable()
    break_cycles()
    assert scan.complete
    (group,) = (group for group in scan.groups if group.note)
    assert (group.chain.holder, group.chain.through) == (name, through)
    assert group.count >= 40
    source = inspect.getsource(sys.modules[__name__]).splitlines()
    assert (source[group.chain.store.line - 1].strip() if group.chain.store.line else "") == line


def break_cycles() -> None:
    for tensor in [obj for obj in gc.get_objects() if type(obj) is torch.Tensor]:
        if tensor.is_leaf:
            tensor.grad = None
        if tensor._backward_hooks:
            tensor._backward_hooks.clear()
    gc.collect()


def test_gradients_that_lead_to_no_cycle_are_not_reported() -> None:
    assert not load_reader()
    gc.collect()
    kept = [torch.ones(100, requires_grad=True) for _ in range(40)]
    for tensor in kept:
        tensor.exp().sum().backward()
        tensor.register_hook(torch.clone)

    scan = scan_objects(10.0)

    assert not any(group.note for group in scan.groups)
    assert not {group.chain.through for group in scan.groups} & {"gradient", "ctx", "tensor hook"}


def test_class_attribute_is_named() -> None:
    leak_cases_serving.global_registry("cpu")
    assert str(first_group()) == "Session.everyone (list of 60), class attribute in leak_cases_serving.py"
    leak_cases_serving.Session.everyone.clear()


def test_reference_cycle_is_garbage() -> None:
    gc.collect()
    batches: Any = cases(LEAKING)["cycles_while_the_collector_is_off"]("cpu")
    garbage = next(group for group in scan_objects(10.0).groups if group.note)
    gc.enable()

    assert str(garbage) == "Batch.data, a reference cycle: garbage that the collector has not freed yet"
    assert garbage.count >= 60
    del batches
    gc.collect()


@pytest.mark.parametrize("count", [1, 3])
def test_objects_of_one_cycle_are_not_called_garbage_after_the_program_has_ended(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """They may have been in use until then; several cycles were left one after another."""

    def make() -> None:
        trainer = types.SimpleNamespace(outputs=[torch.ones(8) for _ in range(30)])
        trainer.callback = types.SimpleNamespace(trainer=trainer)

    gc.collect()
    gc.disable()
    for _ in range(count):
        make()
    monkeypatch.setattr(walk, "frames", list)
    groups = scan_objects(10.0, at_end=True).groups
    gc.enable()
    gc.collect()

    [group] = [group for group in groups if "outputs" in group.chain.holder]
    assert bool(group.note) == (count > 1) and group.count >= 30 * count


@pytest.mark.parametrize(
    ("kind", "holder"),
    [
        ("lists in a dict", "kept (dict of 6)"),
        ("lists in objects in a list", "kept (list of 6)"),
        ("lists in layers", "kept[...].cache (list of 20)"),
        ("one list of most", "kept[5] (list of 200)"),
        ("two lists", "kept[1] (list of 20)"),
    ],
)
def test_similar_containers_are_reported_as_their_common_container(kind: str, holder: str) -> None:
    kept: Any
    if kind == "lists in a dict":
        kept = {n: [torch.ones(8) for _ in range(20)] for n in range(6)}
    elif kind == "lists in objects in a list":
        kept = [types.SimpleNamespace(history=[torch.ones(8) for _ in range(20)]) for _ in range(6)]
    elif kind == "lists in layers":
        kept = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(6)))
        for layer in kept:
            layer.cache = [torch.ones(8) for _ in range(20)]
    elif kind == "one list of most":
        kept = [[torch.ones(8) for _ in range(200 if n == 5 else 20)] for n in range(6)]
    else:
        kept = [[torch.ones(8) for _ in range(10 + 10 * n)] for n in range(2)]

    group = first_group()

    assert str(group).startswith(f"{holder}, local of test_similar"), str(group)
    del kept


def test_graph_is_held_by_the_variable_nearest_to_the_old_nodes() -> None:
    assert not load_reader()
    cell = torch.nn.Linear(8, 8)
    agent = types.SimpleNamespace(memory={"states": [torch.zeros(4, 8)] * 2})
    for _ in range(30):
        agent.memory["states"][0] = cell(agent.memory["states"][0])
        prediction = agent.memory["states"][0].tanh()

    groups = scan_objects(10.0).groups

    (group,) = (group for group in groups if group.nodes > 20)
    assert str(group).startswith('agent.memory["states"][0], local of ') and group.chain.through_graph
    del prediction


def make_meters(weight: torch.Tensor, *, keeps_other_graph: bool) -> types.SimpleNamespace:
    """Return two sums by name, of which one or both keep the graphs of all their addends."""
    meters = types.SimpleNamespace(sums={"loss": types.SimpleNamespace(), "aux": types.SimpleNamespace()})
    for meter in meters.sums.values():
        meter.total = torch.zeros(64)
    for _ in range(30):
        loss = (weight * torch.randn(64)).exp()
        meters.sums["loss"].total = meters.sums["loss"].total + (loss if keeps_other_graph else loss.detach())
        meters.sums["aux"].total = meters.sums["aux"].total + loss.tanh()
    return meters


@pytest.mark.parametrize(
    ("keeps_other_graph", "holder"), [(False, 'meters.sums["aux"].total'), (True, "meters.sums (dict of 2)")]
)
def test_part_of_a_small_container_is_named_if_only_it_leads_to_the_tensors(
    keeps_other_graph: bool, holder: str
) -> None:
    weight = torch.randn(64, requires_grad=True)
    meters = make_meters(weight, keeps_other_graph=keeps_other_graph)

    group = first_group()

    assert str(group).startswith(f"{holder}, local of "), str(group)
    assert group.chain.through_graph and not (group.chain.containers if holder.endswith("total") else ())
    del meters


def test_tensors_of_a_small_container_beside_its_main_part_keep_the_container_as_holder() -> None:
    state = {"weights": torch.zeros(8192), "scores": types.SimpleNamespace(last=torch.zeros(16), best=torch.zeros(16))}

    groups = {str(group).partition(", ")[0]: group.count for group in scan_objects(10.0).groups}

    assert groups['state["weights"]'] == 1 and groups["state (dict of 2)"] == 2, groups
    del state


def test_linked_list_in_a_small_container_is_named_by_its_head() -> None:
    lists = [None, torch.zeros(1)]
    for _ in range(20):
        lists[0] = types.SimpleNamespace(value=torch.zeros(9), rest=lists[0])

    group = first_group()

    assert str(group).startswith("lists[0], local of ") and group.count == 20, str(group)
    del lists


@pytest.mark.parametrize("depth", [1, 8])
def test_attribute_of_a_module_is_named_at_any_depth(depth: int) -> None:
    block = torch.nn.Linear(4, 4)
    block.last_scores, block.state = torch.zeros(1024), torch.zeros(8)
    model = functools.reduce(lambda module, _: torch.nn.Sequential(module), range(depth), block)
    del block

    names = {group.chain.holder for group in scan_objects(10.0).groups}

    assert names >= {f"model{'[0]' * depth}.{name}" for name in ("last_scores", "state", "weight")}, names
    del model


def test_group_has_addresses_and_bytes_of_its_tensors() -> None:
    tensors = [torch.ones(8) for _ in range(20)]
    group = first_group()

    assert set(group.addresses) == {tensor.data_ptr() for tensor in tensors}
    assert group.bytes == sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", ["variable", "dict", "list"])
def test_nodes_of_a_graph_are_counted_for_their_holder(name: str) -> None:
    assert not load_reader()
    leaf = torch.zeros((), requires_grad=True)
    kept: Any = {"variable": leaf, "dict": {"loss": leaf, "steps": 0}, "list": [leaf]}[name]
    for _ in range(100):
        if name == "variable":
            kept = kept + 1.0
        elif name == "dict":
            kept["loss"] = kept["loss"] + 1.0
        else:
            kept.append(leaf + 1.0)

    (group,) = (group for group in scan_objects(10.0).groups if group.nodes)

    assert str(group).startswith({"variable": "kept", "dict": "kept (dict of 2)", "list": "kept (list of 101)"}[name])
    assert group.nodes == 101 and group.has_all_nodes  # 100 additions and the gradient of the leaf


def test_nodes_are_a_lower_bound_when_the_scan_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_reader()
    total = torch.zeros((), requires_grad=True).clone()
    for _ in range(20_000):
        total = total + 1.0
    monkeypatch.setattr(object_scan, "MAX_OBJECTS", 10_000)

    scan = scan_objects(10.0)

    (group,) = (group for group in scan.groups if group.nodes)
    assert str(group).startswith("total, local of ")
    assert 0 < group.nodes < 20_000 and not group.has_all_nodes


def test_scan_in_finalizer_keeps_no_garbage_alive() -> None:
    """Scan during a collection, between two instructions of a finalizer."""
    scans: list[object] = []

    class Circle:
        def __init__(self) -> None:
            self.me, self.tensor = self, torch.empty(70)

        def __del__(self) -> None:
            scans.append(scan_objects(0.2, search_unreached=False))

    Circle()
    gc.collect()

    assert len(scans) == 1
    assert not [item for item in gc.get_objects() if type(item) is Circle]


@pytest.mark.parametrize("is_in_list", [True, False], ids=["list", "C++"])
def test_unreached_tensors_are_unlisted_only_if_a_python_object_refers_to_them(is_in_list: bool) -> None:
    """Guard against blocks reported as held by C++ that an object out of reach holds."""
    unlisted_before = scan_objects(10.0).unlisted
    tensors = [torch.ones(7) for _ in range(200)]
    leaked = [tensors] if is_in_list else tensors[:]
    for obj in leaked:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(obj))
    addresses = [id(obj) for obj in leaked]
    del tensors, leaked, obj

    scan = scan_objects(10.0)

    assert scan.complete
    assert (scan.unlisted - unlisted_before >= 150) == is_in_list
    for address in addresses:
        ctypes.pythonapi.Py_DecRef(ctypes.cast(address, ctypes.py_object))


class SizedTensor(torch.Tensor):
    """Tensor that computes its size in Python."""

    @classmethod
    def __torch_dispatch__(cls, *_: object, **__: object) -> object:
        raise AssertionError("called")


def test_scan_does_not_call_a_tensor_that_computes_its_size() -> None:
    make: Callable[..., torch.Tensor] = torch.Tensor._make_subclass
    sized = [make(SizedTensor, torch.ones(1000), dispatch_sizes_strides_policy="sizes") for _ in range(2)]

    [group] = [group for group in scan_objects(5.0, search_unreached=False).groups if "sized" in str(group)]

    assert group.count == len(sized) and group.tensor_bytes == group.bytes == 2 * 4000
