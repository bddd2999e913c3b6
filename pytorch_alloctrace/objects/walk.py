"""A walk from the roots along references to the tensors, as far as a budget of time and objects goes.

Breadth first, so that what is found first is the shortest chain. References are those that the garbage collector sees
(`gc.get_referents`), and those of autograd graphs, gradients and arrays made from tensors, which it does not see. The
walk makes no objects that the collector counts but its own lists, and lets go of everything at its end.
"""

from __future__ import annotations

import enum
import gc
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import access
from .graphs import GraphReader
from .roots import FrameRoot, ModuleRoot, frames, modules

_CHECK_EVERY = 256
_FEW = 1024
"""Things in a container that are looked at before all others have been."""
_MOST_PREFERRED = 50_000
_MANY = 8
"""A container with at least so many things may be what holds them."""


class Kind(enum.IntEnum):
    """What the walk does with an object, by its type."""

    ATOM = 0
    """Refers to nothing."""
    PLAIN = 1
    """To what the garbage collector says."""
    TENSOR = 2
    STORAGE = 3
    NODE = 4
    """Of an autograd graph."""
    ARRAY = 5
    MODULE = 6
    CLASS = 7
    FINALIZER = 8
    """What `weakref.finalize` is to call."""


# An enum's members are slow to look up.
_ATOM, _PLAIN, _TENSOR, _STORAGE, _NODE, _MODULE, _CLASS = (
    *(Kind.ATOM, Kind.PLAIN, Kind.TENSOR),
    *(Kind.STORAGE, Kind.NODE, Kind.MODULE, Kind.CLASS),
)

_ATOMS = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    bytearray,
    range,
    slice,
    type(None),
    type(...),
    type(NotImplemented),
    types.CodeType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)

_COLLECTIONS = frozenset({list, tuple, deque, dict, set, frozenset})
_PACKAGE = __name__.partition(".")[0]
_FINALIZER = getattr(weakref.finalize, "_Info", None)


@dataclass
class Walk:
    """What was reached. Object n was reached from `parents[n]`; its own index if it is a root."""

    objects: list[Any] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    index: dict[int, int] = field(default_factory=dict)
    """Of the object with an id."""
    tensors: list[int] = field(default_factory=list)
    """Which of the objects are tensors or storages."""
    references: list[int] = field(default_factory=list)
    """All references to those that were seen: from, to, from, to. (A pair for each would be an object for each.)"""
    nodes: set[int] = field(default_factory=set)
    """Which of them are nodes of autograd graphs."""
    containers: list[int] = field(default_factory=list)
    """References to what was reached another way before, from containers with more than a few things in them: from,
    to."""
    cut: dict[int, float] = field(default_factory=dict)
    """Of containers that were not seen as a whole: which share was."""
    within_budget: bool = True
    """False if the budget ran out, or graphs could not be read."""
    unread: int = 0
    """Number of graph nodes and gradients passed over because other threads may have been changing them."""
    gradients: set[int] = field(default_factory=set)
    """Identities of the tensors that are gradients."""

    @property
    def complete(self) -> bool:
        """Return whether all that can be seen was seen."""
        return self.within_budget and not self.unread

    def prefer(self, rank: Callable[[Any], int]) -> None:
        """Leads to each tensor by the reference of the lowest rank. rank: of an object; a way has that of its worst."""
        known: dict[int, int] = {}

        def of(number: int) -> int:
            way = []
            while number not in known:
                way.append(number)
                if self.parents[number] == number:
                    break
                number = self.parents[number]
            for one in reversed(way):
                above = known.get(self.parents[one], 0)
                known[one] = max(above, rank(self.objects[one]))
            return known[way[0] if way else number]

        def lead(parent: int, number: int) -> None:
            if number not in self.way(parent):
                self.parents[number] = parent
                known.pop(number, None)

        # What many things are in says more than the variable that has one of them, or some, at the moment.
        for parent, number in pairs(self.containers):
            before = self.parents[number]
            if of(parent) <= of(before) and _size(self.objects[parent]) > _size(self.objects[before]):
                lead(parent, number)
        for parent, number in pairs(self.references):
            if parent != self.parents[number] and of(parent) < of(self.parents[number]):
                lead(parent, number)

    def way(self, number: int) -> list[int]:
        """The objects from the root to one of them, by number."""
        way = [number]
        while self.parents[way[-1]] != way[-1]:
            way.append(self.parents[way[-1]])
        return way[::-1]


def pairs(flat: list[int]) -> Iterator[tuple[int, int]]:
    """The references of `Walk.references` and `Walk.containers`."""
    return zip(flat[::2], flat[1::2], strict=True)


def _size(thing: Any) -> int:
    return len(thing) if type(thing) in _COLLECTIONS else 0


def is_second(call: FrameRoot, name: str) -> bool:
    """Whether a variable is looked at after all others."""
    return call.is_library or name in ("self", "cls")


class Walker:
    """Knows torch's types. Raises ImportError without torch."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        base = torch._C.TensorBase
        self._tensor = base
        self._is_leaf = base.is_leaf.__get__
        self._grad_fn = base.grad_fn.__get__
        self._forget_operators = getattr(torch.library, "_del_library", None)
        self._kinds: dict[type, Kind] = {}
        self._graphs = GraphReader()
        self._library_names: set[str] | None = None
        self._classes: list[int] = []
        self._others: list[ModuleRoot] = []
        self._at = 0

    def kind(self, cls: type) -> Kind:
        """What is done with objects of a type."""
        found = self._kinds.get(cls)
        if found is None:
            found = self._kinds[cls] = self._find_kind(cls)
        return found

    def _find_kind(self, cls: type) -> Kind:
        torch = self._torch
        bases = access.mro(cls)
        if cls in _ATOMS or any(base in bases for base in (torch.dtype, torch.device, torch.layout)):
            return Kind.ATOM
        # This package's own objects are many, and hold no tensors.
        if access.module_of(cls).partition(".")[0] == _PACKAGE:
            return Kind.ATOM
        if self._tensor in bases:
            return Kind.TENSOR
        if torch._C.StorageBase in bases:
            return Kind.STORAGE
        if types.ModuleType in bases:
            return Kind.MODULE
        if type in bases:
            return Kind.CLASS
        numpy = sys.modules.get("numpy")
        if numpy is not None and bases[0] is getattr(numpy, "ndarray", None):
            return Kind.ARRAY
        if cls is _FINALIZER:
            return Kind.FINALIZER
        if any(type(access.class_dict(base).get("next_functions")) is types.GetSetDescriptorType for base in bases):
            return Kind.NODE
        return Kind.PLAIN

    def walk(self, seconds: float, objects: int, libraries: bool = True) -> Walk:
        """From all roots. seconds, objects: what it may take. libraries: from the variables of libraries, too, after
        all others."""
        walk = Walk(within_budget=self._graphs.can_read)
        deadline = time.monotonic() + seconds
        self._at = 0
        own, others, ours = modules()
        # Every module's dict counts as seen: a function refers to its globals, which is no way to get to anything.
        for variables in (*(root.variables for root in others), *ours):
            walk.index[id(variables)] = -1
        # Nor is the class of an object, if a library has it: what is in there comes last.
        self._library_names, self._classes = {root.name for root in others}, []
        with self._torch._C.DisableTorchFunctionSubclass():
            for module in own:
                self._add_module(walk, module)
            calls = []
            for found in frames():
                if isinstance(found, FrameRoot):
                    calls.append((self._add_frame(walk, found), found))
                elif id(found.variables) not in walk.index:
                    self._add_module(walk, found)
            at = self._go_on(walk, 0, deadline, objects)
            # What only a method's `self` leads to, or what a library has in its variables: `trainer.outputs` in main()
            # says more than `self.outputs` does.
            for number, call in calls:
                self._add(walk, number, [value for name, value in call.variables if is_second(call, name)])
            self._at = self._go_on(walk, at, deadline, objects)
        self._others = others
        if libraries:
            self.walk_libraries(walk, deadline - time.monotonic(), objects)
        else:
            walk.prefer(self.rank)
        return walk

    def walk_libraries(self, walk: Walk, seconds: float, objects: int) -> None:
        """Goes on from the variables of libraries, if what the program's own lead to was all seen."""
        if walk.within_budget:
            deadline = time.monotonic() + seconds
            with self._torch._C.DisableTorchFunctionSubclass():
                self._library_names = None
                for number in self._classes:
                    self._add(walk, number, gc.get_referents(walk.objects[number]))
                for module in self._others:
                    self._add_module(walk, module)
                self._at = self._go_on(walk, self._at, deadline, objects)
        walk.prefer(self.rank)

    def rank(self, thing: Any) -> int:
        """What a person would rather not be told: that an optimizer, or a graph, has a parameter."""
        cls = type(thing)
        if cls is ModuleRoot or cls is FrameRoot:
            return 0
        if self._kinds.get(cls) is Kind.NODE:
            return 2
        return int(self._torch.optim.Optimizer in access.mro(cls))

    def _add_module(self, walk: Walk, root: ModuleRoot) -> None:
        known = walk.index.get(id(root.variables), -1)
        if known >= 0:  # a module under two names
            return
        walk.index[id(root.variables)] = len(walk.objects)
        number = len(walk.objects)
        walk.objects.append(root)
        walk.parents.append(number)
        self._add(walk, number, list(root.variables.values()))

    def _add_frame(self, walk: Walk, root: FrameRoot) -> int:
        number = len(walk.objects)
        walk.objects.append(root)
        walk.parents.append(number)
        self._add(walk, number, [value for name, value in root.variables if not is_second(root, name)])
        return number

    def _go_on(self, walk: Walk, at: int, deadline: float, most: int) -> int:
        """Follows all references of the objects from number `at` on, and of those found; returns where it got."""
        objects, kinds, referents = walk.objects, self._kinds, gc.get_referents
        later: list[tuple[int, list[Any]]] = []
        while at < len(objects) or later:
            if at == len(objects):
                if not self._add_rest(walk, *later.pop(), deadline, most):
                    walk.within_budget = False
                    walk.cut |= {number: _FEW / len(children) for number, children in later}
                    return at
                continue
            if at % _CHECK_EVERY == 0 and (time.monotonic() > deadline or len(objects) > most):
                walk.within_budget = False
                walk.cut |= {number: _FEW / len(children) for number, children in later}
                return at
            thing = objects[at]
            cls = type(thing)
            if cls is not ModuleRoot and cls is not FrameRoot:
                kind = kinds[cls]
                if kind is _CLASS and self._library_names is not None:
                    if access.module_of(thing) in self._library_names:
                        self._classes.append(at)
                        at += 1
                        continue
                    kind = _PLAIN
                children = referents(thing) if kind is _PLAIN else self._referents(walk, thing, kind)
                if len(children) > 2 * _FEW:
                    # Some, evenly picked, with all others; the rest when nothing smaller is left.
                    later.append((at, children))
                    children = children[:: -(-len(children) // _FEW)]
                self._add(walk, at, children)
            at += 1
        return at

    def _add_rest(self, walk: Walk, number: int, children: list[Any], deadline: float, most: int) -> bool:
        """What a large container refers to, in parts; False if time is up, and how much was seen is in `Walk.cut`."""
        for start in range(0, len(children), _FEW):
            if time.monotonic() > deadline or len(walk.objects) > most:
                walk.cut[number] = max(start, _FEW) / len(children)
                return False
            self._add(walk, number, children[start : start + _FEW])
        return True

    def _add(self, walk: Walk, parent: int, children: list[Any]) -> None:
        index, objects, parents, kinds = walk.index, walk.objects, walk.parents, self._kinds
        is_many = len(children) >= _MANY and type(objects[parent]) in _COLLECTIONS and _size(objects[parent]) >= _MANY
        is_many = is_many and len(walk.containers) < 2 * _MOST_PREFERRED
        for child in children:
            cls = type(child)
            try:
                kind = kinds[cls]
            except KeyError:
                kind = self.kind(cls)
            if kind is _ATOM:
                continue
            number = index.get(id(child))
            if number is None:
                if kind is _MODULE and id(access.module_dict(child)) in index:
                    continue
                number = index[id(child)] = len(objects)
                objects.append(child)
                parents.append(parent)
                if kind is _TENSOR or kind is _STORAGE:
                    walk.tensors.append(number)
                    walk.references += parent, number
                elif kind is _NODE:
                    walk.nodes.add(number)
            elif kind is _TENSOR or kind is _STORAGE:
                walk.references += parent, number
                if is_many and number >= 0:
                    walk.containers += parent, number
            elif is_many and number >= 0:
                walk.containers += parent, number

    def _referents(self, walk: Walk, thing: Any, kind: Kind) -> list[Any]:
        if kind is Kind.TENSOR:
            return self._of_tensor(walk, thing)
        if kind is Kind.NODE:
            read = self._graphs.referents(thing)
            walk.unread += read is None
            return [*gc.get_referents(thing), *(read or ())]
        if kind is Kind.ARRAY:
            base = type(thing).__dict__["base"].__get__(thing)
            return [] if base is None else [base]
        if kind is Kind.CLASS:
            return gc.get_referents(thing)
        if kind is Kind.MODULE:
            return list(access.module_dict(thing).values())
        if kind is Kind.FINALIZER:
            # Torch has over a hundred of them for its own operators, with thousands of objects behind.
            return [] if thing.func is self._forget_operators else gc.get_referents(thing)
        return []

    def _of_tensor(self, walk: Walk, tensor: Any) -> list[Any]:
        found = gc.get_referents(tensor)
        try:
            # A frozen parameter keeps its gradient, and any tensor may retain one.
            gradients = self._graphs.gradients(tensor)
            walk.unread += gradients is None
            walk.gradients.update(map(id, gradients or ()))
            found += gradients or ()
            if not self._is_leaf(tensor) and not (self._tensor._is_view(tensor) and tensor._version):
                # (A view of what was written to since would make its node anew.)
                found.append(self._grad_fn(tensor))
        except (RuntimeError, AttributeError) as error:  # a tensor without a graph, or one that is being made
            if not access.raised_here(error):
                raise
        return found
