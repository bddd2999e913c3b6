"""Lines that store into what holds a tensor, found in bytecode."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.objects import chains
from pytorch_alloctrace.objects.edges import Edge, How
from pytorch_alloctrace.objects.graphs import load_reader
from pytorch_alloctrace.objects.roots import ModuleRoot
from pytorch_alloctrace.objects.stores import Store, find_store


def stored_at(tensor: torch.Tensor) -> tuple[str, str]:
    """Return how a tensor's holder is stored, and the text of the line."""
    chain = alloctrace.holders(tensor).chain
    assert chain is not None
    store = chain.store
    return store.kind, _lines()[store.line - 1].strip() if store.line else ""


@functools.cache
def _lines() -> list[str]:
    module = inspect.getmodule(stored_at)
    assert module is not None
    return inspect.getsource(module).splitlines()


class Trainer:
    def __init__(self) -> None:
        self.total: Any = 0
        self.outputs: list[torch.Tensor] = []
        self.by_step: dict[int, torch.Tensor] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def collect(self, output: torch.Tensor) -> None:
        self.outputs.append(output)

    def add(self, loss: torch.Tensor) -> None:
        self.total = self.total + loss


def test_variable_is_stored_by_the_line_in_the_loop_that_adds_to_it() -> None:
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    for _ in range(3):
        total += weight.exp().sum()

    assert stored_at(total) == ("addition", "total += weight.exp().sum()")


def test_variable_is_stored_by_the_line_that_joins_it() -> None:
    parts = torch.zeros(0)
    for _ in range(3):
        parts = torch.cat((parts, torch.ones(2)))

    assert stored_at(parts) == ("update", "parts = torch.cat((parts, torch.ones(2)))")


def test_attribute_is_stored_by_the_method_that_adds_to_it() -> None:
    trainer = Trainer()
    for _ in range(3):
        trainer.collect(torch.ones(2))
        trainer.add(torch.ones(2))

    assert stored_at(trainer.outputs[1]) == ("call", "self.outputs.append(output)")
    assert stored_at(trainer.total) == ("addition", "self.total = self.total + loss")


class Attempt:
    def __init__(self) -> None:
        self.error: Exception | None = None


def attempt_step(attempt: Attempt) -> None:
    activations = torch.ones(2)
    ADDRESSES.append(weakref.ref(activations))
    raise ValueError(len(activations))


def probe() -> Attempt:
    attempt = Attempt()
    try:
        attempt_step(attempt)
    except ValueError as error:
        attempt.error = error
    return attempt


ADDRESSES: list[weakref.ref[torch.Tensor]] = []


def test_exception_is_stored_by_the_function_that_sets_the_attribute() -> None:
    attempt = probe()

    activations = ADDRESSES.pop()()
    assert attempt.error is not None and activations is not None
    assert stored_at(activations) == ("assignment", "attempt.error = error")


class Reports:
    def __init__(self) -> None:
        self.reports: list[object] = []

    def handle(self, attempt: Attempt) -> None:
        try:
            attempt_step(attempt)
        except ValueError as problem:
            self.reports.append(("rejected", problem))
        else:
            self.reports.append(("done", attempt))


def test_exception_in_a_list_is_stored_by_the_line_that_reads_it() -> None:
    reports = Reports()
    reports.handle(Attempt())

    activations = ADDRESSES.pop()()
    assert activations is not None
    assert stored_at(activations) == ("call", 'self.reports.append(("rejected", problem))')


def test_dict_is_stored_by_the_line_that_sets_its_items() -> None:
    trainer = Trainer()
    for step in range(3):
        trainer.by_step[step] = torch.ones(2)

    assert stored_at(trainer.by_step[1]) == ("call", "trainer.by_step[step] = torch.ones(2)")


def test_hook_is_stored_by_the_line_that_registers_it() -> None:
    def register(model: torch.nn.Module) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []

        def save(module: Any, arguments: Any, output: torch.Tensor) -> None:
            seen.append(output.detach())

        model.register_forward_hook(save)
        model(torch.ones(2))
        return seen

    model = torch.nn.Linear(2, 2)
    (tensor,) = register(model)

    assert stored_at(tensor) == ("registration", "model.register_forward_hook(save)")


def test_default_value_is_stored_by_the_definition_of_its_function() -> None:
    def draw(images: list[torch.Tensor] = [torch.ones(2), torch.ones(2)]) -> Any:  # noqa: B006, B008
        return images[0]

    kind, line = stored_at(draw())

    assert kind == "definition" and line.startswith("def draw")


def test_function_in_a_list_is_stored_by_the_line_that_adds_it() -> None:
    pending: list[Callable[[], torch.Tensor]] = []
    for _ in range(3):
        prediction = torch.ones(2)

        def compute(prediction: torch.Tensor = prediction) -> torch.Tensor:
            return prediction

        pending.append(compute)
    del prediction

    store = stored_at(pending[1]())

    assert store == ("call", "pending.append(compute)")


def test_list_that_nothing_fills_has_no_store() -> None:
    tensors = [torch.ones(2) for _ in range(3)]

    assert stored_at(tensors[1]) == ("", "")


history: list[Any] = []
labels: dict[str, Any] = {}
features: dict[str, Any] = {}
groups: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
last: list[Any] = [None] * 4


def read_containers(keys: list[str]) -> None:
    for number, key in enumerate(keys):
        last[number % 4] = history[-1].shape
        labels[key] = features[key]
        history[0] = history[-1]


def fill_containers(keys: list[str]) -> None:
    for key in keys:
        history.append(torch.ones(2))
        features[key if key else "unknown"] = torch.ones(2)
        groups[key].append(torch.ones(2))


@pytest.fixture
def filled_containers() -> Iterator[None]:
    fill_containers(["a", "b"])
    yield
    for container in (history, features, groups):
        container.clear()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("filled_containers")
def test_container_is_not_filled_by_a_line_that_reads_it() -> None:
    assert stored_at(history[1]) == ("call", "history.append(torch.ones(2))")
    assert stored_at(features["b"]) == ("call", 'features[key if key else "unknown"] = torch.ones(2)')


@pytest.mark.usefixtures("filled_containers")
def test_container_of_containers_is_filled_by_the_line_that_fills_its_items() -> None:
    assert stored_at(groups["a"][0]) == ("call", "groups[key].append(torch.ones(2))")


def test_dict_is_stored_by_the_line_that_adds_to_its_items() -> None:
    sums = {"loss": torch.zeros(()), "error": torch.zeros(())}
    for key in sums:
        sums[key] += torch.ones(())

    assert stored_at(sums["loss"]) == ("call", "sums[key] += torch.ones(())")


def test_item_is_not_stored_by_a_line_that_counts_another_item() -> None:
    state: dict[str, Any] = {"step": 0}
    for _ in range(3):
        state["step"] += 1
        state["mean"] = torch.ones(2)

    assert stored_at(state["mean"]) == ("call", 'state["mean"] = torch.ones(2)')


def test_container_in_the_state_of_a_library_is_stored_by_the_line_that_keeps_its_object() -> None:
    stages: list[Any] = []
    for _ in range(2):
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        optimizer = torch.optim.Adam([parameter])
        optimizer.step()
        stages.append(optimizer)
    del optimizer

    assert stored_at(stages[0].state[stages[0].param_groups[0]["params"][0]]["exp_avg"]) == (
        "call",
        "stages.append(optimizer)",
    )


def write_log(log: dict[str, list[Any]], name: str, value: torch.Tensor) -> None:
    log[name].append(value)


class Reading:
    def __init__(self) -> None:
        self.value: Any = 0.0

    def update(self, loss: torch.Tensor) -> None:
        self.value = 0.9 * self.value + loss


def saved_input(readings: dict[str, Reading]) -> torch.Tensor:
    saved: torch.Tensor = readings["energy"].value.grad_fn.next_functions[0][0].next_functions[0][0]._saved_self
    return saved


def test_entries_that_a_program_makes_are_stored_by_the_line_that_assigns_their_attribute() -> None:
    load_reader()
    weight = torch.ones(3, requires_grad=True)
    readings = {name: Reading() for name in ("energy", "contact")}
    readings["energy"].update((2 * weight).sin().sum())

    store = stored_at(saved_input(readings))

    assert store == ("addition", "self.value = 0.9 * self.value + loss")


class Recorder:
    def __init__(self, layer: torch.nn.Module) -> None:
        layer.inputs = []  # type: ignore[assignment]
        self.hook = layer.register_forward_hook(self.remember)

    def remember(self, layer: Any, arguments: Any, output: Any) -> None:
        layer.inputs.append(arguments[0])


def test_attribute_of_a_library_object_is_stored_by_a_line_of_the_program() -> None:
    layer = torch.nn.Linear(2, 2)
    recorder = Recorder(layer)
    tensor = torch.ones(1, 2)
    layer(tensor)

    assert stored_at(tensor) == ("call", "layer.inputs.append(arguments[0])")
    recorder.hook.remove()


def test_item_is_not_stored_by_a_line_that_fills_another_item() -> None:
    log: dict[str, list[Any]] = {"loss": [], "output": []}
    for number in range(3):
        log["loss"].append(number)
    write_log(log, "".join(("out", "put")), kept := torch.ones(2))
    assert stored_at(kept) == ("", "")


def test_tensor_is_not_stored_by_a_line_that_calls_its_methods() -> None:
    total = torch.zeros(2)
    shifted = total.add(1)
    total[0] = 1

    assert stored_at(total) == ("assignment", "total = torch.zeros(2)")
    del shifted


@dataclasses.dataclass
class Metrics:
    total: Any = None
    worst: Any = None

    def update(self, loss: torch.Tensor) -> None:
        self.worst = loss


class Best:
    def __init__(self, model: Any) -> None:
        self.first = model
        self.last = model
        self.recent: list[torch.Tensor] = []

    @property
    def output(self) -> Any:
        return self.last

    @output.setter
    def output(self, value: torch.Tensor) -> None:
        self.last = value


def test_attribute_is_not_stored_by_a_constructor() -> None:
    metrics = Metrics(torch.ones(2), torch.ones(2))
    metrics.update(torch.ones(2))
    best = Best(torch.ones(2))

    assert stored_at(metrics.total) == ("", "")
    assert stored_at(metrics.worst) == ("assignment", "self.worst = loss")
    assert stored_at(best.first) == ("", "")


def test_attribute_is_stored_by_a_setter() -> None:
    best = Best(None)
    best.output = torch.ones(2)

    assert stored_at(best.last) == ("assignment", "self.last = value")


def test_code_compiled_from_text_is_not_named() -> None:
    source = "kept = []\ndef keep(tensor): kept.append(tensor)"
    named, unnamed = types.ModuleType("named"), types.ModuleType("unnamed")
    for module, filename in ((named, "<ipython-input-3-0123456789ab>"), (unnamed, "<string>")):
        exec(compile(source, filename, "exec"), vars(module))
        vars(module)["keep"](torch.ones(2))

    stores = [_find_global_store(module, "kept") for module in (named, unnamed)]

    assert stores == [Store("call", "<ipython-input-3-0123456789ab>", "keep", 2), Store()]


def _find_global_store(module: types.ModuleType, name: str, *deadline: float) -> Store:
    holder = vars(module)[name]
    root = ModuleRoot(module.__name__, "", vars(module), False)
    edges = [Edge(How.VARIABLE, name), Edge(How.ITEM, "[0]")]
    return find_store([root, holder, holder[0]], edges, 1, *deadline)


def _load(source: str) -> types.ModuleType:
    module = types.ModuleType("program")
    exec(compile(source, "/home/user/program.py", "exec"), vars(module))
    return module


KEEP = "kept = [1]\ndef keep(value): kept.append(value)\n"


@pytest.mark.parametrize(
    "source",
    [
        "class Meta(type): __eq__ = lambda cls, other: cls.key == other.key\nclass A(metaclass=Meta): pass\na = A()\n",
        "def read(): kept\nread.__code__ = read.__code__.replace(co_consts=([],))\n",
        "keep.__code__ = keep.__code__.replace(co_consts=(None, []))\n",
        "def read():\n" + "  kept[0]\n" * 20_000,
    ],
    ids=["metaclass", "unhashable constant", "unhashable constant in the function that stores", "long function"],
)
def test_store_is_found_beside(source: str) -> None:
    module = _load(KEEP + source)

    assert _find_global_store(module, "kept") == Store("call", "/home/user/program.py", "keep", 2)


def test_functions_are_found_in_wrappers() -> None:
    module = _load(
        """
import functools, types
kept = [1]
class Cache:
    def bound(self, value): kept.append(value)
    @functools.cached_property
    def cached(self): first.append(1)
first, second = [1], [1]
def keep(value): second.append(value)
hooks = functools.partial(keep, 1)
keep = None
method = Cache().bound
del Cache.bound
"""
    )

    assert [_find_global_store(module, name).line for name in ("kept", "first", "second")] == [5, 7, 9]


def test_attribute_is_stored_in_a_class_of_a_module_without_file(monkeypatch: pytest.MonkeyPatch) -> None:
    module = _load("class Cache:\n  def add(self, value): self.kept.append(value)\n")
    module.__dict__["__name__"] = module.Cache.__module__ = "module_without_file"
    monkeypatch.setitem(sys.modules, "module_without_file", module)
    cache = module.Cache()
    cache.kept = [torch.ones(2), torch.ones(2)]

    chain = alloctrace.holders(cache.kept[0]).chain

    assert chain is not None and chain.store.line == 2


def test_store_is_unknown_after_the_deadline() -> None:
    assert _find_global_store(_load(KEEP), "kept", -1.0) == Store()


def test_store_is_unknown_if_functions_are_too_long() -> None:
    module = _load("kept = [1]\ndef keep(value):\n" + "  kept.append(value)\n" * 20_000)

    assert _find_global_store(module, "kept") == Store()


def test_path_is_found_if_the_search_for_its_store_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "find_store", functools.partial(max, [0], key=1))  # raises TypeError in C code
    tensors = [torch.ones(2), torch.ones(2)]

    chain = alloctrace.holders(tensors[0]).chain

    assert chain is not None and (chain.holder, chain.store) == ("tensors", Store())
