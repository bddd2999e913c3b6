"""References back to an object from what it refers to: such a cycle lives until Python's garbage collector runs."""

from __future__ import annotations

import gc
import time
import types
from collections.abc import Sequence
from typing import Any

from . import access
from .chains import collect_links
from .edges import How
from .inventory import tensor_type
from .roots import FrameRoot, ModuleRoot
from .stores import UNKNOWN, Store, find_cycle_store

_MAX_VISITED = 2000
"""Maximum number of references followed from the objects of one path."""
_MAX_ITEMS = 500
"""Maximum number of items of a container that are followed."""
_SKIPPED = (types.ModuleType, types.FrameType, types.BuiltinFunctionType, type)


def find_back_reference(path: Sequence[Any], deadline: float, *, with_store: bool = False) -> tuple[str, Store]:
    """Return the attribute through which an object of a path is in a cycle, such as "Node.parent".

    With `with_store`, return the line that assigns it, too.

    Of several objects, that nearest to the tensor counts. The attribute is "" if none is found. `deadline`: end of the
    search, by `time.thread_time`.
    """
    visited_count = 0
    for start in reversed(path):
        if access.has_exact_type(start, (ModuleRoot, FrameRoot)) or access.is_a(start, access.CONTAINERS):
            continue
        parents: dict[int, Any] = {id(start): None}
        queue = [start]
        for obj in queue:
            children = _referents(obj)
            visited_count += 1 + len(children)
            if visited_count >= _MAX_VISITED or time.thread_time() > deadline:
                return "", UNKNOWN
            for child in children:
                if child is start:
                    return _describe(start, obj, parents, deadline if with_store else None)
                if id(child) not in parents and gc.is_tracked(child) and not access.is_a(child, _SKIPPED):
                    parents[id(child)] = obj
                    queue.append(child)
    return "", UNKNOWN


def _referents(obj: Any) -> list[Any]:
    if type(obj) is types.FunctionType:  # not its globals
        return [*(obj.__closure__ or ()), *(obj.__defaults__ or ())]
    is_passed = access.is_a(obj, tensor_type()) or (access.length(obj) or 0) > _MAX_ITEMS
    return [] if is_passed else gc.get_referents(obj)


def _describe(start: Any, last: Any, parents: dict[int, Any], deadline: float | None) -> tuple[str, Store]:
    """Return the last attribute on the way from an object to itself, which ends with a reference from `last`.

    An attribute that refers to one object, such as its owner, is preferred to one with a container of objects.
    """
    way = [start, last]
    while way[-1] is not start:
        way.append(parents[id(way[-1])])
    nodes, links = collect_links(way[::-1], None)
    attributes = [
        (not access.is_a(target, access.CONTAINERS), position, f"{link.owner}{link.edge.text}")
        for position, (link, target) in enumerate(zip(links, nodes[1:], strict=True))
        if link.edge.how is How.ATTRIBUTE and link.edge.text != ".__self__"
    ]
    if not attributes:
        return "", UNKNOWN
    _, position, name = max(attributes)
    if deadline is None:
        return name, UNKNOWN
    return name, find_cycle_store(nodes[position], links[position].edge.text[1:], deadline)
