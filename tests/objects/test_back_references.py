"""Attributes through which objects are in reference cycles."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from pytorch_alloctrace.objects.back_references import find_back_reference
from pytorch_alloctrace.objects.stores import UNKNOWN


class Node:
    def __init__(self, parent: Node | None = None) -> None:
        self.state = torch.empty(4)
        self.children: list[Node] = []
        self.parent = parent
        if parent is not None:
            parent.children.append(self)


class Schedule(LambdaLR):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer, self.rate)

    def rate(self, epoch: int) -> float:
        return 1.0 / (epoch + 1)


class Slotted:
    __slots__ = ("owner",)


def find(*path: Any) -> str:
    return find_back_reference(path, math.inf)[0]


def test_attribute_that_refers_back_is_named() -> None:
    root = Node()
    child = Node(root)
    assert find(root, root.children, child, child.state) == "Node.parent"
    assert find(child, root, child.state) == "Node.parent", "not children, which has a list of objects"


def test_line_that_assigns_the_attribute_is_found() -> None:
    root = Node()
    child = Node(root)

    _, store = find_back_reference([child, root, child.state], math.inf, with_store=True)

    source = Path(__file__).read_text().splitlines()[store.line - 1]
    assert store.filename == __file__ and source.strip() == "self.parent = parent"


def test_bound_method_in_a_container_refers_back() -> None:
    assert find(Schedule(torch.optim.SGD(torch.nn.Linear(2, 2).parameters()))) == "Schedule.lr_lambdas"


def test_slot_and_closure_refer_back() -> None:
    slotted, hooks = Slotted(), Slotted()
    slotted.owner = [slotted]
    hooks.owner = lambda: hooks
    assert find(slotted) == "Slotted.owner"
    assert find(hooks) == "Slotted.owner"


def test_object_without_a_cycle_has_no_back_reference() -> None:
    leaf = Node()
    leaf.parent = Node()
    assert find(leaf, leaf.children) == ""
    assert find([], {}, torch.nn.Linear(2, 2), torch.empty(2)) == ""
    assert find_back_reference([Node(Node())], 0.0) == ("", UNKNOWN)
