"""Tensors to which no root leads: garbage that is not collected yet, and tensors held by C++ code only."""

from __future__ import annotations

import dataclasses
import gc
import math
import time
import types
from collections.abc import Sequence
from typing import Any

from . import access
from .back_references import find_back_reference
from .chains import CYCLE, GRADIENT, TENSOR_HOOK, Chain, chain_of
from .roots import FrameRoot, ModuleRoot
from .walk import Kind, Walk, Walker, reference_pairs

_MAX_LEVELS, _MAX_LEVEL = 12, 128
"""Maximum number of references on a path to a tensor, and of objects of a level whose referrers are read."""
_MAX_CYCLE = 10_000
"""Maximum number of objects visited in the search of a cycle."""
GARBAGE = "a reference cycle: garbage that the collector has not freed yet"
CPP_CYCLE = "a reference cycle through C++, which the collector may not detect"
UNREAD = "held by objects to which no variable of the program leads, such as those of a library or of C++ code"
OF_CPP = "held by C++ code, or by a value in use: nothing else in Python refers to it"


def find_referrers(tensor: Any, walk: Walk) -> tuple[Chain | None, str]:
    """Return the referrer path to a tensor that the walk did not reach, or None, and why the tensor is alive."""
    search = ReferrerSearch([tensor], walk, set(), math.inf)
    search.read()
    objects, is_cycle = search.find_path(tensor)
    chain, note = describe_path(objects, is_cycle=is_cycle)
    return chain, note if is_cycle or search.is_complete else UNREAD


def find_paths(
    tensors: Sequence[Any], walk: Walk, ignored: Sequence[object] = (), deadline: float = math.inf
) -> list[tuple[list[Any], bool]]:
    """Return for each tensor the objects that lead to it, the tensor last, and whether they begin in a cycle.

    The walk did not reach the tensors. `ignored`: objects of this package that refer to the tensors. `deadline`: end of
    the search, by `time.thread_time`.
    """
    search = ReferrerSearch(tensors, walk, {id(ignored), *map(id, ignored)}, deadline)
    search.read()
    return [search.find_path(tensor) for tensor in tensors]


def describe_path(objects: list[Any], *, is_cycle: bool, deadline: float = math.inf) -> tuple[Chain | None, str]:
    """Return the referrer path of objects as of `find_paths`, None of a tensor alone, and why the tensor is alive."""
    if len(objects) < 2:
        return None, OF_CPP
    chain = chain_of(objects, deadline=deadline)
    if is_cycle:
        back_reference, store = find_back_reference(objects, deadline, with_store=True)
        store = store if store.line else chain.store
        chain = dataclasses.replace(chain, back_reference=back_reference, store=store)
    return _describe_cycle(chain) if is_cycle else (chain, OF_CPP.replace("it", "that"))


def _describe_cycle(chain: Chain) -> tuple[Chain, str]:
    if not chain.through and all(container.length <= 1 for container in chain.containers):
        chain = dataclasses.replace(chain, through=CYCLE)
    return chain, CPP_CYCLE if chain.through in (GRADIENT, TENSOR_HOOK) else GARBAGE


def find_cycle(tensor: Any, walker: Walker, walk: Walk, seconds: float) -> tuple[Chain | None, str]:
    """Return the path from an unreached tensor, or its `ctx`, to the tensor itself, and a note; None without a cycle.

    Follows references forwards, also those of C++, which `find_referrers` cannot.
    """
    below = walker.walk_unreached(walk, [tensor], seconds, _MAX_CYCLE)
    end = next((parent for parent, child in reference_pairs(below.references) if not child), None)
    if end is None:
        return None, ""
    path = [below.objects[number] for number in below.short_path_to(end)]
    if len(path) > 1 and walker.kind(type(path[1])) is Kind.TENSOR:
        name = "tensor.grad"  # no program has a name for it
        return _describe_cycle(Chain(name, name, container="", root="", filename="", line=0, through=GRADIENT))
    is_context = len(path) > 1 and access.function_of_context(type(path[1]))
    return _describe_cycle(chain_of([*path[1 if is_context else 0 :], tensor]))


class ReferrerSearch:
    """The objects that refer to some tensors, directly or not, read level by level for all of the tensors at once.

    `gc.get_referrers` visits all objects of the process, however many referrers it is asked for.
    """

    def __init__(self, tensors: Sequence[Any], walk: Walk, ignored_ids: set[int], deadline: float) -> None:
        self._walk = walk
        self._deadline = deadline
        self._held_ids: set[int] = set()
        """Ids of objects to which an object refers that the walk reached, but did not follow, as in a library."""
        self._objects: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
        self._referrers: dict[int, list[Any]] = {}  # by the id of the object that they refer to
        self._level = list(tensors)
        self._depth = 0
        self._is_cut = False
        self._ignored_ids = ignored_ids | {id(walk.objects), id(walk.index), id(tensors)}
        self._ignored_ids |= {id(self.__dict__), id(self._objects), id(self._referrers)}
        for root in walk.objects:
            if type(root) is FrameRoot:
                self._ignored_ids |= {id(root.variables), *map(id, root.variables)}

    @property
    def is_complete(self) -> bool:
        """True if all objects that lead to the tensors were read."""
        return not self._level and not self._is_cut

    def read(self) -> None:
        """Read the objects that refer to the tensors, as far as the limits allow, but at least one level of them."""
        while self._level and not self._is_cut and self._depth < _MAX_LEVELS:
            if self._depth and time.thread_time() > self._deadline:
                break
            self._read_level()

    def _read_level(self) -> None:
        # `gc.get_referrers` compares each reference in the process with each of these objects.
        self._is_cut = len(self._level) > _MAX_LEVEL
        level, self._level = self._level[:_MAX_LEVEL], []
        ids = {id(obj) for obj in level}
        own_ids = {id(level), id(self._level), *map(id, self._referrers.values())}
        self._depth += 1
        for referrer in gc.get_referrers(*level):
            if (
                id(referrer) in self._ignored_ids
                or access.has_exact_type(referrer, (types.FrameType, FrameRoot, ModuleRoot))
                or id(referrer) in own_ids
            ):
                continue
            referent_ids = ids.intersection(map(id, gc.get_referents(referrer)))
            if id(referrer) in self._walk.index:
                self._held_ids |= referent_ids
                continue
            for referent_id in referent_ids:
                self._referrers.setdefault(referent_id, []).append(referrer)
            if id(referrer) not in self._objects:
                self._objects[id(referrer)] = referrer
                self._level.append(referrer)

    def find_path(self, tensor: Any) -> tuple[list[Any], bool]:
        """Return the objects that lead to a tensor, as far as they are known, and whether they begin in a cycle.

        No cycle is told if anything else may lead to it: if the search is not complete, or found a reference.
        """
        child_of: dict[int, Any] = {}
        visited: dict[int, Any] = {id(tensor): tensor}
        references: dict[int, list[int]] = {}  # ids of the visited objects that each object refers to
        queue = [tensor]
        cycle: list[Any] = []
        for obj in queue:
            for referrer in self._referrers.get(id(obj), ()):
                references.setdefault(id(referrer), []).append(id(obj))
                if id(referrer) in visited:
                    # Two paths to the same object are not yet a cycle.
                    is_new = not cycle and (referrer is not tensor or len(queue) > 1)
                    if is_new and _is_reachable(id(obj), id(referrer), references):
                        cycle = _build_chain(referrer, obj, child_of, visited)
                    continue
                visited[id(referrer)] = referrer
                child_of[id(referrer)] = obj
                queue.append(referrer)
        if cycle and self.is_complete and self._held_ids.isdisjoint(visited):
            return cycle, True
        return (_build_chain(queue[-1], None, child_of, visited) if len(queue) > 1 else [tensor]), False


def _is_reachable(start_id: int, end_id: int, references: dict[int, list[int]]) -> bool:
    pending, visited = [start_id], {start_id}
    while pending:
        current = pending.pop()
        if current == end_id:
            return True
        unvisited = [target for target in references.get(current, ()) if target not in visited]
        visited.update(unvisited)
        pending += unvisited
    return False


def _build_chain(top_object: Any, cycle_end: Any, child_of: dict[int, Any], visited: dict[int, Any]) -> list[Any]:
    """Return the objects from `top_object` to the tensor. The owner of an attribute dict or of hooks comes first."""
    tensor = next(iter(visited.values()))
    start = top_object if top_object is not tensor else cycle_end
    chain = [start]
    while id(chain[-1]) in child_of:
        chain.append(child_of[id(chain[-1])])
    if type(start) is dict and cycle_end is not None and access.attributes(cycle_end) is start:
        return [cycle_end, *chain]
    if access.is_a(start, dict) and top_object is tensor:
        return [tensor, *chain]  # its hooks
    if type(start) is dict:
        for obj in visited.values():
            if child_of.get(id(obj)) is start and type(obj) not in access.DICTS and access.attributes(obj) is start:
                return [obj, *chain]
    return chain
