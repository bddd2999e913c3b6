"""Lines that store into what holds a tensor, found in bytecode."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

import pytorch_alloctrace as alloctrace


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
    callbacks: list[Callable[[], Any]] = []
    for _ in range(2):

        def draw(images: list[torch.Tensor] = [torch.ones(2), torch.ones(2)]) -> Any:  # noqa: B006, B008
            return images[0]

        callbacks.append(draw)

    kind, line = stored_at(callbacks[0]())

    assert kind == "definition" and line.startswith("def draw")


def test_list_that_nothing_fills_has_no_store() -> None:
    tensors = [torch.ones(2) for _ in range(3)]

    assert stored_at(tensors[1]) == ("", "")
