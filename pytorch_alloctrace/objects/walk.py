"""A walk from the roots along references to the tensors, within a budget of processor time and objects.

Processor time of the thread: while other threads have the interpreter, or other programs the processor, a walk does not
run out of time.

The walk is breadth first, so the first path to a tensor is a shortest one. It follows `gc.get_referents`, and the
references that the garbage collector does not report: autograd graphs, gradients and arrays made from tensors.
Apart from its own lists, the walk creates no objects that the garbage collector counts: those would bring the program's
next collection forward.
"""

from __future__ import annotations

import enum
import gc
import sys
import time
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import access
from .graphs import GraphReader
from .roots import FrameRoot, ModuleRoot, frames, library_roots, modules

MAX_OBJECTS = 2_000_000
_CHECK_EVERY = 256
"""Number of objects visited between two checks of the budget."""
_SAMPLE_SIZE = 1024
"""Number of items of a large container that are visited at once. The other items follow all smaller objects."""
_MAX_CONTAINER_REFERENCES = 50_000
_MIN_COLLECTION = 8
"""Minimum number of items of a container for which a path through it may replace a shorter path."""


class Kind(enum.IntEnum):
    """How the walk treats an object, by its type."""

    ATOM = 0
    """No references."""
    PLAIN = 1
    """References reported by `gc.get_referents`."""
    TENSOR = 2
    STORAGE = 3
    NODE = 4
    ARRAY = 5
    MODULE = 6
    CLASS = 7
    FINALIZER = 8
    """Record of `weakref.finalize`."""


# Looking up a member of an enum is slow.
_ATOM, _PLAIN, _TENSOR, _STORAGE, _NODE, _ARRAY, _MODULE, _CLASS = (
    *(Kind.ATOM, Kind.PLAIN, Kind.TENSOR),
    *(Kind.STORAGE, Kind.NODE, Kind.ARRAY, Kind.MODULE, Kind.CLASS),
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

_COLLECTIONS = frozenset(map(id, (list, tuple, deque, dict, set, frozenset)))
"""`id` of the types of collections."""
_CONTAINERS = _COLLECTIONS | {id(OrderedDict)}
"""`id` of the types of containers that are left out if they are empty: a dozen of a torch module's attributes are."""
_PACKAGE = __name__.partition(".")[0]
_FINALIZER = getattr(weakref.finalize, "_Info", None)


@dataclass
class Walk:
    """The objects that a walk reached, by number."""

    objects: list[Any] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """Numbers of the objects from which they were reached; a root is its own parent."""
    index: dict[int, int] = field(default_factory=dict)
    """Number of each object by its id; -1 for dicts that are not to be entered."""
    tensors: list[int] = field(default_factory=list)
    references: list[int] = field(default_factory=list)
    """All references to tensors and storages: from, to, from, to. Tuples would be one more object each."""
    nodes: set[int] = field(default_factory=set)
    arrays: list[int] = field(default_factory=list)
    """Numbers of the numpy arrays."""
    containers: list[int] = field(default_factory=list)
    """References from collections to objects that were reached before by another path: from, to, from, to."""
    visited_shares: dict[int, float] = field(default_factory=dict)
    """Visited share, 0 to 1, of each container that was not visited completely."""
    within_budget: bool = True
    """False if the budget ran out, or graphs could not be read."""
    unread: int = 0
    """Number of graph nodes and gradients passed over because other threads may have been changing them."""
    gradients: set[int] = field(default_factory=set)
    """`id` of the tensors that are gradients."""

    @property
    def complete(self) -> bool:
        """Return whether every readable object was visited."""
        return self.within_budget and not self.unread

    def prefer(self, rank: Callable[[Any], int]) -> None:
        """Choose the path of the lowest rank to each tensor. A path has the highest rank of its objects."""
        path_ranks: dict[int, int] = {}

        def path_rank(number: int) -> int:
            pending = []
            while number not in path_ranks:
                pending.append(number)
                if self.parents[number] == number:
                    break
                number = self.parents[number]
            for object_number in reversed(pending):
                parent_rank = path_ranks.get(self.parents[object_number], 0)
                path_ranks[object_number] = max(parent_rank, rank(self.objects[object_number]))
            return path_ranks[pending[0] if pending else number]

        def set_parent(parent: int, number: int) -> None:
            if number not in self.path_to(parent):
                self.parents[number] = parent
                path_ranks.pop(number, None)

        # A collection of many objects explains more than a variable that refers to one of them at the moment.
        for parent, number in reference_pairs(self.containers):
            current_parent = self.parents[number]
            if path_rank(parent) <= path_rank(current_parent) and _collection_size(
                self.objects[parent]
            ) > _collection_size(self.objects[current_parent]):
                set_parent(parent, number)
        for parent, number in reference_pairs(self.references):
            if parent != self.parents[number] and path_rank(parent) < path_rank(self.parents[number]):
                set_parent(parent, number)

    def path_to(self, number: int) -> list[int]:
        path = [number]
        while self.parents[path[-1]] != path[-1]:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def short_path_to(self, number: int) -> list[int]:
        """Return the path to an object without the graph nodes between two others: a graph may be a long chain."""
        path = [-1, *self.path_to(number), -1]
        return [
            step
            for before, step, after in zip(path, path[1:], path[2:], strict=False)
            if step not in self.nodes or before not in self.nodes or after not in self.nodes
        ]


def reference_pairs(flat: list[int]) -> Iterator[tuple[int, int]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _collection_size(obj: Any) -> int:
    return len(obj) if id(type(obj)) in _COLLECTIONS else 0


def is_deferred_variable(call: FrameRoot, name: str) -> bool:
    return call.is_library or name in ("self", "cls")


class Walker:
    def __init__(self) -> None:
        import torch

        self._torch = torch
        base = torch._C.TensorBase
        self._tensor = base
        self._is_leaf = base.is_leaf.__get__
        self._grad_fn = base.grad_fn.__get__
        self._forget_operators = getattr(torch.library, "_del_library", None)
        self._kinds: dict[int, Kind] = {id(cls): Kind.ATOM for cls in _ATOMS}  # by `id` of the class
        self._classes: list[type] = []  # keeps these ids from being reused
        self._graphs = GraphReader()
        self._library_names: set[str] | None = None
        self._library_classes: list[int] = []
        self._next_number = 0

    def kind(self, cls: type) -> Kind:
        kind = self._kinds.get(id(cls))
        if kind is None:
            self._classes.append(cls)
            kind = self._kinds[id(cls)] = self._determine_kind(cls)
        return kind

    def _determine_kind(self, cls: type) -> Kind:
        torch = self._torch
        bases = access.mro(cls)
        if issubclass(cls, (torch.dtype, torch.device, torch.layout)):
            return Kind.ATOM
        # This package has many objects of its own. They refer to no tensors.
        if access.module_of(cls).partition(".")[0] == _PACKAGE:
            return Kind.ATOM
        if issubclass(cls, self._tensor):
            return Kind.TENSOR
        if issubclass(cls, torch._C.StorageBase):
            return Kind.STORAGE
        if issubclass(cls, types.ModuleType):
            return Kind.MODULE
        if issubclass(cls, type):
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
        """Walk from all roots to at most `objects` objects. `libraries`: at last from the variables of libraries."""
        walk = Walk(within_budget=self._graphs.can_read)
        deadline = time.thread_time() + seconds
        self._next_number = 0
        program_modules, library_names, other_variables = modules()
        # Mark the dict of every module as visited: a path through the globals of a function explains nothing.
        walk.index.update(dict.fromkeys(other_variables, -1))
        # Classes of libraries explain nothing either: their attributes are visited last.
        self._library_names, self._library_classes = library_names, []
        with self._torch._C.DisableTorchFunctionSubclass():
            for module in program_modules:
                self._add_module(walk, module)
            call_roots = []
            for root in frames():
                if isinstance(root, FrameRoot):
                    call_roots.append((self._add_frame(walk, root), root))
                elif id(root.variables) not in walk.index:
                    self._add_module(walk, root)
            next_number = self._follow_references(walk, 0, deadline, objects)
            # Visit `self` and the variables of library functions last: `trainer.outputs` in main() explains more than
            # `self.outputs` in a method.
            for number, call in call_roots:
                self._add(walk, number, [value for name, value in call.variables if is_deferred_variable(call, name)])
            self._next_number = self._follow_references(walk, next_number, deadline, objects)
        if libraries:
            self.walk_libraries(walk, deadline - time.thread_time(), objects)
        else:
            walk.prefer(self.rank)
        return walk

    def walk_libraries(self, walk: Walk, seconds: float, objects: int) -> None:
        """Walk on from the variables of libraries, if the walk from the program's own variables finished."""
        if walk.within_budget:
            deadline = time.thread_time() + seconds
            with self._torch._C.DisableTorchFunctionSubclass():
                names, self._library_names = self._library_names or set(), None
                for number in self._library_classes:
                    self._add(walk, number, gc.get_referents(walk.objects[number]))
                for module in library_roots(names):
                    self._add_module(walk, module)
                self._next_number = self._follow_references(walk, self._next_number, deadline, objects)
        walk.prefer(self.rank)

    def walk_unreached(self, walk: Walk, roots: list[Any], seconds: float, objects: int) -> Walk:
        """Walk from objects that the walk did not reach. The objects of the walk are not visited again."""
        more = Walk(index=dict.fromkeys(walk.index, -1))
        for root in roots:
            if id(root) not in more.index:
                kind = self.kind(type(root))
                number = more.index[id(root)] = len(more.objects)
                more.objects.append(root)
                more.parents.append(number)
                more.tensors += [number] if kind is _TENSOR else []
        library_classes, self._library_classes = self._library_classes, []  # their numbers are those of the first walk
        try:
            self._follow_references(more, 0, time.thread_time() + seconds, objects)
        finally:
            self._library_classes = library_classes
        walk.unread += more.unread
        return more

    def find_possible_cycle(self, tensor: Any) -> Any:
        """Return an object to which a tensor refers and that may lead back to the tensor, else None.

        It is a gradient that has a graph, the `ctx` of a `torch.autograd.Function` that made the tensor, or its hooks.
        """
        attributes = access.attributes(tensor)
        for obj in self._tensor_referents(Walk(), tensor):
            kind = self.kind(type(obj))
            if kind is _TENSOR and not self._is_leaf(obj):
                return obj
            if kind is _NODE and access.function_of_context(type(obj)):
                return obj
            if access.is_a(obj, dict) and obj is not attributes and access.length(obj):
                return obj
        return None

    def rank(self, obj: Any) -> int:
        """Return 0, or more for objects that seldom keep a tensor alive: 1 for optimizers, 2 for graph nodes."""
        cls = type(obj)
        if cls is ModuleRoot or cls is FrameRoot:
            return 0
        if self._kinds.get(id(cls)) is Kind.NODE:
            return 2
        return int(issubclass(cls, self._torch.optim.Optimizer))

    def _add_module(self, walk: Walk, root: ModuleRoot) -> None:
        existing_number = walk.index.get(id(root.variables), -1)
        if existing_number >= 0:  # a module under two names
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
        self._add(walk, number, [value for name, value in root.variables if not is_deferred_variable(root, name)])
        return number

    def _follow_references(self, walk: Walk, next_number: int, deadline: float, max_objects: int) -> int:
        """Follow all references from the object `next_number` on. Return the number of the first object not visited."""
        objects, kinds, referents = walk.objects, self._kinds, gc.get_referents
        large_containers: list[tuple[int, list[Any]]] = []
        while next_number < len(objects) or large_containers:
            if next_number == len(objects):
                if not self._add_remaining_items(walk, *large_containers.pop(), deadline, max_objects):
                    walk.within_budget = False
                    walk.visited_shares |= {
                        number: _SAMPLE_SIZE / len(children) for number, children in large_containers
                    }
                    return next_number
                continue
            if next_number % _CHECK_EVERY == 0 and (time.thread_time() > deadline or len(objects) > max_objects):
                walk.within_budget = False
                walk.visited_shares |= {number: _SAMPLE_SIZE / len(children) for number, children in large_containers}
                return next_number
            obj = objects[next_number]
            cls = type(obj)
            if cls is not ModuleRoot and cls is not FrameRoot:
                kind = kinds[id(cls)]
                if kind is _CLASS and self._library_names is not None:
                    if access.module_of(obj) in self._library_names:
                        self._library_classes.append(next_number)
                        next_number += 1
                        continue
                    kind = _PLAIN
                children = referents(obj) if kind is _PLAIN else self._referents(walk, obj, kind)
                if len(children) > 2 * _SAMPLE_SIZE:
                    # Visit an even sample now, the remaining items when no smaller object is left.
                    large_containers.append((next_number, children))
                    children = children[:: -(-len(children) // _SAMPLE_SIZE)]
                self._add(walk, next_number, children)
            next_number += 1
        return next_number

    def _add_remaining_items(
        self, walk: Walk, number: int, children: list[Any], deadline: float, max_objects: int
    ) -> bool:
        """Add all items of a large container. Return False and set `Walk.visited_shares` if the budget ran out."""
        for start in range(0, len(children), _SAMPLE_SIZE):
            if time.thread_time() > deadline or len(walk.objects) > max_objects:
                walk.visited_shares[number] = max(start, _SAMPLE_SIZE) / len(children)
                return False
            self._add(walk, number, children[start : start + _SAMPLE_SIZE])
        return True

    def _add(self, walk: Walk, parent: int, children: list[Any]) -> None:
        index, objects, parents, kinds = walk.index, walk.objects, walk.parents, self._kinds
        is_collection = (
            len(children) >= _MIN_COLLECTION
            and id(type(objects[parent])) in _COLLECTIONS
            and _collection_size(objects[parent]) >= _MIN_COLLECTION
        )
        is_collection = is_collection and len(walk.containers) < 2 * _MAX_CONTAINER_REFERENCES
        for child in children:
            try:
                kind = kinds[id(type(child))]
            except KeyError:
                kind = self.kind(type(child))
            if kind is _ATOM or (kind is _PLAIN and id(type(child)) in _CONTAINERS and not child):
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
                elif kind is _ARRAY:
                    walk.arrays.append(number)
            elif kind is _TENSOR or kind is _STORAGE:
                walk.references += parent, number
                if is_collection and number >= 0:
                    walk.containers += parent, number
            elif kind is _NODE and kinds.get(id(type(objects[parent]))) is _TENSOR:
                # A variable's own graph explains more than the graph of a later result that leads to it.
                walk.references += parent, number
            elif is_collection and number >= 0:
                walk.containers += parent, number

    def _referents(self, walk: Walk, obj: Any, kind: Kind) -> list[Any]:
        if kind is Kind.TENSOR:
            return self._tensor_referents(walk, obj)
        if kind is Kind.NODE:
            graph_referents = self._graphs.referents(obj)
            walk.unread += graph_referents is None
            return [*gc.get_referents(obj), *(graph_referents or ())]
        if kind is Kind.ARRAY:
            base = access.array_base(obj)
            return [] if base is None else [base]
        if kind is Kind.CLASS:
            return gc.get_referents(obj)
        if kind is Kind.MODULE:
            return list(access.module_dict(obj).values())
        if kind is Kind.FINALIZER:
            # torch registers over a hundred finalizers for its operators, which lead to thousands of objects.
            return [] if obj.func is self._forget_operators else gc.get_referents(obj)
        return []

    def _tensor_referents(self, walk: Walk, tensor: Any) -> list[Any]:
        referents = gc.get_referents(tensor)
        try:
            # Any tensor may have a gradient: frozen parameters keep theirs, `retain_grad` keeps it elsewhere.
            gradients = self._graphs.gradients(tensor)
            walk.unread += gradients is None
            walk.gradients.update(map(id, gradients or ()))
            referents += gradients or ()
            if not self._is_leaf(tensor) and not (self._tensor._is_view(tensor) and tensor._version):
                # Not of a view whose base was written to: reading grad_fn would create a node.
                referents.append(self._grad_fn(tensor))
        except (RuntimeError, AttributeError) as error:  # no graph, or the tensor is being constructed
            if not access.raised_here(error):
                raise
        return referents
