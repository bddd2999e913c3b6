"""Search of the object that holds a tensor: the fullest container, or the part of it with most of the bytes."""

from __future__ import annotations

import functools
import itertools
import time
import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import access
from .inventory import Storage, tensor_type
from .walk import Walk, reference_pairs

_REFERENCES_PER_CHECK = 4096
MIN_SIBLINGS = 4
"""Minimum number of containers in one container that are reported as the one: a dict of lists."""
MAX_DIVIDED = 16
"""Maximum number of items of a container for its main part to be reported apart from it."""
MIN_MAIN_SHARE = 0.8
"""Minimum share of a container's bytes that its main part holds."""
MAX_LEVELS = 8
"""Maximum number of objects between a container and the common container: a linked list may have thousands."""
MIN_LINKED_LIST = 10
"""Minimum length in objects, without modules, of a path without a container that counts as a linked list."""
_MODULE_ATTRIBUTES = ("_modules", "_parameters", "_buffers")
"""Attributes of torch modules that are not collections of the program."""

Members = dict[Storage, int]
"""Storages, and the number in the walk of a tensor of each."""


def total_bytes(members: Members) -> int:
    return sum(storage.bytes for storage in members)


class _PathState(NamedTuple):
    holder: int
    """Number of the fullest container above the object, or above the exception whose traceback leads to it. Without a
    container: the object itself, the tensor that leads to its graph, or the first object of a linked list."""
    size: int
    """Number of items of the container, 0 without one."""
    first: int
    """Number of the first object below the root, -1 for the root."""
    depth: int
    in_graph: bool
    in_traceback: bool


class HolderSearch:
    """Search of the holders of objects in a walk. What is above several of them is examined once."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._states: dict[int, _PathState] = {}
        self._sizes: dict[int, int] = {}

    def holder_of(self, number: int) -> int:
        """Return the number of the object's holder (see `_PathState`)."""
        parents = self._walk.parents
        pending = []
        current = parents[number]
        while current not in self._states:
            pending.append(current)
            if parents[current] == current:
                break
            current = parents[current]
        for parent in reversed(pending):
            self._states[parent] = self._state_of(parent)
        return self._state_of(number).holder

    def find_common_containers(self, members: dict[int, Members]) -> dict[int, int]:
        """Return the common container of holders that are similar containers, unless one has most of the tensors.

        By holder. Containers are similar if the objects between them and the common container have the same types.
        """
        common: dict[int, int] = {}
        siblings: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for holder in members:
            container, type_ids = self._container_above(holder) if self._size_of(holder) else (-1, ())
            if container >= 0:
                siblings.setdefault((container, type_ids), []).append(holder)
        for (container, _), holders in siblings.items():
            counts = [len(members[holder]) for holder in holders]
            if len(holders) >= MIN_SIBLINGS and 2 * max(counts) <= sum(counts):
                common.update(dict.fromkeys(holders, container))
        return common

    def find_main_part(self, holder: int, members: Members, nodes: Sequence[int], deadline: float) -> int:
        """Return the deepest object below a small container that most of its bytes have on their path.

        Returns the container if there is none, or if other parts of the container lead to the same tensors or graphs or
        may do so when the deadline ends the search.
        """
        walk, part, current = self._walk, holder, holder
        if not 1 < self._size_of(holder) <= MAX_DIVIDED or len(members) < 2:
            return holder
        minimum = MIN_MAIN_SHARE * total_bytes(members)
        type_ids: set[int] = set()
        while current not in walk.nodes and not access.is_a(walk.objects[current], tensor_type()):
            next_of = self._next_below(current)
            bytes_by_next: Counter[int] = Counter()
            for storage, number in members.items():
                bytes_by_next[next_of(number)] += storage.bytes
            current, amount = max(bytes_by_next.items(), key=lambda item: item[1])
            if current < 0 or amount < minimum:
                break
            obj = walk.objects[current]
            # Repeated types are the nodes of a linked list, whose head is the holder. A traceback is a part of the
            # exception, which is the holder.
            if (type(obj) is not dict and id(type(obj)) in type_ids) or type(obj) is types.TracebackType:
                break
            type_ids.add(id(type(obj)))
            if type(obj) is not dict or self._size_of(current):  # not a dict of attributes
                part = current
        return part if part == holder or self._is_apart(holder, part, nodes, deadline) else holder

    def below(self, top: int) -> Callable[[int], bool]:
        """Return a function that returns whether the path to an object contains `top`."""
        next_of = self._next_below(top)
        return lambda number: number == top or next_of(number) >= 0

    def _is_apart(self, holder: int, part: int, nodes: Sequence[int], deadline: float) -> bool:
        """Return whether nothing else below the holder leads to the tensors below the part; False at the deadline."""
        is_below, is_below_holder = self.below(part), self.below(holder)
        if len({is_below(number) for number in nodes}) > 1:
            return False  # the graphs may have nodes in common
        references = itertools.chain(reference_pairs(self._walk.references), reference_pairs(self._walk.containers))
        for position, (origin, to) in enumerate(references):
            if position % _REFERENCES_PER_CHECK == _REFERENCES_PER_CHECK - 1 and time.thread_time() > deadline:
                return False
            if is_below(to) and not is_below(origin) and is_below_holder(origin) and self._walk.parents[to] != origin:
                return False
        return True

    def _next_below(self, top: int) -> Callable[[int], int]:
        """Return a function that returns the object after `top` on the path to an object, or -1 if it is not below."""
        parents = self._walk.parents
        results = {top: -1}

        def next_of(number: int) -> int:
            pending = []
            while number not in results and parents[number] not in (top, number):
                pending.append(number)
                number = parents[number]
            result = results.setdefault(number, number if parents[number] == top else -1)
            results.update(dict.fromkeys(pending, result))
            return result

        return next_of

    def _container_above(self, number: int) -> tuple[int, tuple[int, ...]]:
        """Return the nearest container above an object, or -1, and the `id` of the types below it.

        Attribute dicts are left out.
        """
        walk, type_ids = self._walk, [id(type(self._walk.objects[number]))]
        while (parent := walk.parents[number]) != number and len(type_ids) <= MAX_LEVELS:
            if self._size_of(parent) or is_submodules(walk, parent):
                return parent, tuple(type_ids)
            if type(walk.objects[parent]) is not dict:
                type_ids.append(id(type(walk.objects[parent])))
            number = parent
        return -1, ()

    def _size_of(self, number: int) -> int:
        if number not in self._sizes:
            self._sizes[number] = 0 if number in self._walk.nodes else collection_size(self._walk, number)
        return self._sizes[number]

    def _state_of(self, number: int) -> _PathState:
        """Return the state of an object from that of its parent."""
        parent = self._walk.parents[number]
        if parent == number:
            return _PathState(number, 0, -1, 0, False, False)
        holder, size, first, depth, in_graph, in_traceback = self._states[parent]
        in_graph = in_graph or number in self._walk.nodes
        in_traceback = in_traceback or type(self._walk.objects[parent]) is types.TracebackType
        first = number if first < 0 else first
        parent_size = 0 if in_traceback and size else self._size_of(parent)
        if parent_size > size:
            holder, size = parent, parent_size
        elif not size and not in_graph:
            holder = first if depth >= MIN_LINKED_LIST else number
        return _PathState(holder, size, first, depth + (not _is_of_module(self._walk, number)), in_graph, in_traceback)


def collection_size(walk: Walk, number: int) -> int:
    """Return the number of items of a container; 0 for other objects and for attribute dicts."""
    obj = walk.objects[number]
    if type(obj) is functools._lru_cache_wrapper:
        return access.length(obj) or 0
    if not access.is_a(obj, access.CONTAINERS):
        return 0
    parent = walk.objects[walk.parents[number]]
    if type(obj) is dict and not access.has_exact_type(parent, access.CONTAINERS) and _is_attribute_dict(obj, parent):
        return 0
    if type(parent) is dict and any(parent.get(name) is obj for name in _MODULE_ATTRIBUTES):
        return 0
    # A container of a single item is not a collection.
    size = access.length(obj) or 0
    return size if size > 1 else 0


def is_submodules(walk: Walk, number: int) -> bool:
    """Return whether an object is the dict of the submodules of a torch module."""
    obj, parent = walk.objects[number], walk.objects[walk.parents[number]]
    return type(obj) is dict and type(parent) is dict and parent.get("_modules") is obj


def _is_of_module(walk: Walk, number: int) -> bool:
    """Return whether an object is a torch module or one of the dicts of its attributes."""
    import torch

    for _ in range(2):  # `_modules` in `__dict__`
        if type(walk.objects[number]) is dict:
            number = walk.parents[number]
    return access.is_a(walk.objects[number], torch.nn.Module)


def _is_attribute_dict(mapping: dict[Any, Any], parent: Any) -> bool:
    return access.is_class(parent) or (
        all(type(key) is str for key in mapping) and access.attributes(parent) is mapping
    )
