"""Tensors to which no root leads: garbage that waits for the collector, and what only C++ code holds."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from typing import Any

from . import access
from .chains import Chain, chain_of
from .roots import FrameRoot, ModuleRoot
from .walk import Walk

_LEVELS, _REFERRERS = 12, 2_000
"""How far, and through how many objects, references are followed backwards."""
GARBAGE = "a reference cycle: garbage that the collector has not freed yet"
OF_CPP = "held by C++ code, or by a value in use: nothing else in Python refers to it"


def unreached(tensor: Any, walk: Walk, besides: Sequence[object] = ()) -> tuple[Chain | None, str]:
    """What is above a tensor that the walk did not find, if anything is, and why it is alive. besides: objects of ours
    that refer to it."""
    objects, is_cycle = _above(tensor, walk, {id(besides), *map(id, besides)})
    if len(objects) < 2:
        return None, OF_CPP
    return chain_of(objects), GARBAGE if is_cycle else OF_CPP.replace("it", "that")


def _above(tensor: Any, walk: Walk, ours: set[int]) -> tuple[list[Any], bool]:
    """The objects that lead to a tensor, from one that is in a cycle, else from one that nothing refers to."""
    below: dict[int, Any] = {}
    known: dict[int, Any] = {id(tensor): tensor}
    refers: dict[int, list[int]] = {}  # by the ids of those that were found: to which of them each refers
    at = 0
    order = [tensor]
    ours |= {id(below), id(known), id(order), id(walk.objects), id(walk.index)}
    for root in walk.objects:
        if type(root) is FrameRoot:
            ours |= {id(root.variables), *map(id, root.variables)}
    top: Any = None
    while at < len(order) and len(order) < _REFERRERS and at < _LEVELS:
        thing = order[at]
        at += 1
        referrers = gc.get_referrers(thing)
        for one in referrers:
            if id(one) in ours or id(one) in walk.index or type(one) in (types.FrameType, FrameRoot, ModuleRoot):
                continue
            refers.setdefault(id(one), []).append(id(thing))
            if id(one) in known:
                # Two ways up to one object are no cycle.
                if (one is not tensor or len(order) > 1) and _leads_to(id(thing), id(one), refers):
                    return _down(one, thing, below, tensor), True
                continue
            known[id(one)] = one
            below[id(one)] = thing
            order.append(one)
        del referrers
    top = order[min(at, len(order) - 1)] if at >= len(order) else order[at]
    return _down(top, None, below, tensor), False


def _leads_to(begin: int, end: int, refers: dict[int, list[int]]) -> bool:
    """Return whether references lead from one object to another, or both are the same object."""
    waiting, seen = [begin], {begin}
    while waiting:
        at = waiting.pop()
        if at == end:
            return True
        new = [one for one in refers.get(at, ()) if one not in seen]
        seen.update(new)
        waiting += new
    return False


def _down(top: Any, closing: Any, below: dict[int, Any], tensor: Any) -> list[Any]:
    """From an object down to the tensor; from the owner, if it is the dict of one."""
    start = top if top is not tensor else closing
    chain = [start]
    while id(chain[-1]) in below:
        chain.append(below[id(chain[-1])])
    if type(start) is dict and closing is not None and access.attributes(closing) is start:
        return [closing, *chain]
    return chain
