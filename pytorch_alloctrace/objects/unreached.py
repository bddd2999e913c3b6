"""Tensors to which no root leads: garbage that is not collected yet, and tensors held by C++ code only."""

from __future__ import annotations

import gc
import math
import time
import types
from collections.abc import Sequence
from typing import Any

from . import access
from .chains import Chain, chain_of
from .roots import FrameRoot, ModuleRoot
from .walk import Walk

_MAX_EXPANDED, _MAX_REFERRERS = 12, 2_000
"""Maximum number of objects whose referrers are read, and of referrers collected."""
GARBAGE = "a reference cycle: garbage that the collector has not freed yet"
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
    return chain_of(objects, deadline=deadline), GARBAGE if is_cycle else OF_CPP.replace("it", "that")


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
                    return _build_chain(referrer, obj, child_of, tensor), True
                continue
            visited[id(referrer)] = referrer
            child_of[id(referrer)] = obj
            queue.append(referrer)
        del referrers
    top_object = queue[min(position, len(queue) - 1)] if position >= len(queue) else queue[position]
    return _build_chain(top_object, None, child_of, tensor), False


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


def _build_chain(top_object: Any, cycle_end: Any, child_of: dict[int, Any], tensor: Any) -> list[Any]:
    """Return the objects from `top_object` to the tensor. The owner of an attribute dict comes first."""
    start = top_object if top_object is not tensor else cycle_end
    chain = [start]
    while id(chain[-1]) in child_of:
        chain.append(child_of[id(chain[-1])])
    if type(start) is dict and cycle_end is not None and access.attributes(cycle_end) is start:
        return [cycle_end, *chain]
    return chain
