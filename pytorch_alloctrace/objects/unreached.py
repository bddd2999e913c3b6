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

_MAX_EXPANDED, _MAX_REFERRERS = 12, 2_000
"""Maximum number of objects whose referrers are read, and of referrers collected."""
_MAX_CYCLE = 10_000
"""Maximum number of objects visited in the search of a cycle."""
GARBAGE = "a reference cycle: garbage that the collector has not freed yet"
CPP_CYCLE = "a reference cycle through C++, which the collector may not detect"
OF_CPP = "held by C++ code, or by a value in use: nothing else in Python refers to it"


def find_referrers(
    tensor: Any, walk: Walk, ignored: Sequence[object] = (), deadline: float = math.inf
) -> tuple[Chain | None, str]:
    """Return the referrer path to a tensor that the walk did not reach, or None, and why the tensor is alive.

    `ignored`: objects of this package that refer to the tensor. `deadline`: end of the search, by `time.thread_time`.
    """
    objects, is_cycle = _follow_referrers(tensor, walk, {id(ignored), *map(id, ignored)}, deadline)
    if len(objects) < 2:
        return None, OF_CPP
    chain = chain_of(objects, deadline=deadline)
    if is_cycle:
        chain = dataclasses.replace(chain, back_reference=find_back_reference(objects, deadline))
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


def _follow_referrers(tensor: Any, walk: Walk, ignored_ids: set[int], deadline: float) -> tuple[list[Any], bool]:
    """Return the objects that lead to a tensor, and whether they begin in a cycle."""
    child_of: dict[int, Any] = {}
    visited: dict[int, Any] = {id(tensor): tensor}
    references: dict[int, list[int]] = {}  # ids of the visited objects that each object refers to
    position = 0
    queue = [tensor]
    ignored_ids |= {id(child_of), id(visited), id(queue), id(walk.objects), id(walk.index)}
    for root in walk.objects:
        if type(root) is FrameRoot:
            ignored_ids |= {id(root.variables), *map(id, root.variables)}
    top_object: Any = None
    while (
        position < len(queue)
        and len(queue) < _MAX_REFERRERS
        and position < _MAX_EXPANDED
        and (not position or time.thread_time() < deadline)  # a call of gc.get_referrers visits all objects
    ):
        obj = queue[position]
        position += 1
        referrers = gc.get_referrers(obj)
        for referrer in referrers:
            if (
                id(referrer) in ignored_ids
                or id(referrer) in walk.index
                or access.has_exact_type(referrer, (types.FrameType, FrameRoot, ModuleRoot))
            ):
                continue
            references.setdefault(id(referrer), []).append(id(obj))
            if id(referrer) in visited:
                # Two paths to the same object are not yet a cycle.
                if (referrer is not tensor or len(queue) > 1) and _is_reachable(id(obj), id(referrer), references):
                    return _build_chain(referrer, obj, child_of, visited), True
                continue
            visited[id(referrer)] = referrer
            child_of[id(referrer)] = obj
            queue.append(referrer)
        del referrers
    top_object = queue[min(position, len(queue) - 1)] if position >= len(queue) else queue[position]
    return _build_chain(top_object, None, child_of, visited), False


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
