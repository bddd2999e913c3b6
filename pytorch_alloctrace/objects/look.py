"""A quick look at what holds many tensors: all that a short walk finds, put together by what holds them."""

from __future__ import annotations

import functools
import gc
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import access
from .chains import Chain, chain_of
from .frames import can_read
from .inventory import Storage, disable_torch_function, storage_of, tensor_type
from .unreached import GARBAGE, unreached
from .walk import Walk, Walker

GROUPS = 16
"""What holds most tensors, and what holds most bytes: so many of each."""
SURELY = 6
"""So many groups are told even if time is up: they are what was looked for."""
ADDRESSES = 512
"""Most addresses of one group that are told, evenly picked."""
OBJECTS = 2_000_000
_CONTAINERS = (*access.DICTS, *access.SEQUENCES, *access.SETS)
UNREACHED = 8
"""So many tensors that were not found are worth more time."""
PART = 256
"""So many tensors are asked for their memory before the time is."""
LONG = 10
"""A chain of more objects, without a container, is one thing: a linked list."""
_OF_MODULES = ("_modules", "_parameters", "_buffers")
"""Attributes of torch modules that are no collections of the program's."""
_SAMPLES = 5
"""About so many tensors without a root are looked at more closely; what most of them are in is named."""


@dataclass(frozen=True)
class Group:
    """Tensors that are held by one thing."""

    chain: Chain
    """To one of them; items without their index."""
    note: str
    """"" where a root leads to it; else that it is garbage."""
    count: int
    """Pieces of memory; estimated, where there was no time to see all."""
    bytes: int
    """Requested bytes of them."""
    addresses: tuple[int, ...]
    """Of some of them: see `ADDRESSES`."""

    @property
    def is_garbage(self) -> bool:
        return bool(self.note)

    def __str__(self) -> str:
        return f"{self.chain}, {self.note}" if self.note else str(self.chain)


@dataclass(frozen=True)
class Look:
    """What a look saw."""

    groups: tuple[Group, ...]
    """Most tensors first."""
    complete: bool
    """Whether all that can be seen was seen: within the time, and without a graph that other threads were changing."""
    seconds: float


def look(seconds: float, more: bool = True) -> Look:
    """Looks for at most about so many seconds. more: if there are many tensors to which nothing of the program leads,
    also at what only libraries hold, and at what no root leads to, which takes longest."""
    begin = time.monotonic()
    if not can_read():
        return Look((), False, 0.0)
    with disable_torch_function():
        return _look(seconds, begin, more)


def _look(seconds: float, begin: float, more: bool) -> Look:
    walker = Walker()
    # The last step may take a part of the time as well.
    walk = walker.walk(0.7 * seconds, OBJECTS, libraries=False)
    of_nothing: list[Group] = []
    if more and walk.within_budget and len(_unreached(walk)[0]) >= UNREACHED:
        of_nothing = _of_garbage(walk, begin + 0.6 * seconds) if walk.complete else []
        if not of_nothing:
            walker.walk_libraries(walk, begin + 0.8 * seconds - time.monotonic(), OBJECTS)
    members, seen = _members(walk, begin + 0.9 * seconds)
    found = sorted(members.items(), key=lambda one: (-len(one[1]), -_bytes(one[1])))
    most = found[:GROUPS]
    most += sorted(found[GROUPS:], key=lambda one: -_bytes(one[1]))[:GROUPS]
    groups = []
    for number, (holder, group) in enumerate(most):
        if number >= SURELY and time.monotonic() - begin > seconds:
            break
        groups.append(_group(walk, holder, group, seen))
    return Look((*groups, *of_nothing), walk.complete, time.monotonic() - begin)


Members = dict[Storage, int]
"""The number of one tensor for each piece of memory."""


def _bytes(members: Members) -> int:
    return sum(storage.bytes for storage in members)


def _members(walk: Walk, deadline: float) -> tuple[dict[int, Members], float]:
    """The memory that the walk found, by what holds it (see `_Place`); and of which share of the tensors it is."""
    fullest: dict[int, _Place] = {}
    members: dict[int, Members] = {}
    known: set[int] = set()
    for position, number in enumerate(walk.tensors):
        if position % PART == PART - 1 and time.monotonic() > deadline:
            return members, position / len(walk.tensors)
        storage = storage_of(walk.objects[number])
        if storage is None or not storage.bytes or not storage.address or storage.key in known:
            continue
        known.add(storage.key)
        holder = _fullest(walk, number, fullest)
        members.setdefault(holder, {})[storage] = number
    return members, 1.0


class _Place(NamedTuple):
    """What is known of an object on the way to tensors."""

    holder: int
    """The number of the fullest container above it; without one, of the object itself, or of the tensor that leads to
    its graph; of the first object of a long chain."""
    size: int
    first: int
    depth: int
    in_graph: bool


def _fullest(walk: Walk, number: int, known: dict[int, _Place]) -> int:
    """The number of what holds a tensor: see `_Place`."""
    way = []
    at = number
    while at not in known:
        way.append(at)
        if walk.parents[at] == at:
            break
        at = walk.parents[at]
    for one in reversed(way):
        above = walk.parents[one]
        if above == one:
            known[one] = _Place(one, 0, -1, 0, False)
            continue
        holder, size, first, depth, in_graph = known[above]
        in_graph = in_graph or one in walk.nodes
        first = one if first < 0 else first
        length = _length(walk, above)
        if length > size:
            holder, size = above, length
        elif not size and not in_graph:
            holder = first if depth >= LONG else one
        known[one] = _Place(holder, size, first, depth + 1, in_graph)
    return known[number].holder


def _length(walk: Walk, number: int) -> int:
    """How many items a container has; 0 for others, and for the dicts of objects."""
    thing = walk.objects[number]
    if type(thing) is functools._lru_cache_wrapper:
        return int(thing.cache_info().currsize)
    if type(thing) not in _CONTAINERS and not any(base in access.mro(type(thing)) for base in _CONTAINERS):
        return 0
    above = walk.objects[walk.parents[number]]
    if type(thing) is dict and type(above) not in _CONTAINERS and _is_of_attributes(thing, above):
        return 0
    if type(above) is dict and any(above.get(name) is thing for name in _OF_MODULES):
        return 0
    # One thing in a container is no collection.
    size = access.length(thing) or 0
    return size if size > 1 else 0


def _is_of_attributes(thing: dict[Any, Any], above: Any) -> bool:
    return access.is_class(above) or (all(type(key) is str for key in thing) and access.attributes(above) is thing)


def _group(walk: Walk, holder: int, members: Members, seen: float) -> Group:
    numbers = sorted(members.values())
    way = walk.way(numbers[len(numbers) // 2])
    things = [walk.objects[one] for one in way]
    # If it is no container, all that is below it is one.
    is_container = bool(_length(walk, holder))
    chain = chain_of(things, things[way.index(holder)]) if is_container else chain_of(things[: way.index(holder) + 1])
    # What was not seen of it is like what was.
    scale = 1 / walk.cut.get(holder, 1.0) / (seen if len(members) >= PART // 2 else 1.0)
    return Group(chain, "", round(scale * len(members)), round(scale * _bytes(members)), _addresses(members))


def _addresses(members: Members) -> tuple[int, ...]:
    addresses = [storage.address for storage in members]
    step = max(1, -(-len(addresses) // ADDRESSES))
    return tuple(addresses[::step])


def _of_garbage(walk: Walk, deadline: float) -> list[Group]:
    """The tensors that no root leads to, by what is above a few of them."""
    things, left = _unreached(walk)
    if not things:
        return []
    seen: dict[str, list[tuple[Chain, str]]] = {}
    samples = things[:: max(1, len(things) // _SAMPLES)]
    for one in samples:
        if time.monotonic() > deadline:
            break
        chain, note = unreached(one, walk, [things, samples])
        # What no cycle holds may yet be held by a library.
        if chain is not None and note == GARBAGE:
            seen.setdefault(str(chain), []).append((chain, note))
    most = max(seen.values(), key=len, default=[])
    if 2 * len(most) <= len(samples):  # of several kinds, nothing that has a name, or no time
        return []
    chain, note = most[0]
    return [Group(chain, note, len(left), _bytes(left), _addresses(left))]


def _unreached(walk: Walk) -> tuple[list[Any], Members]:
    """The tensors that the walk has not found, one for each piece of memory."""
    tensor = tensor_type()
    known = {storage.key for number in walk.tensors if (storage := storage_of(walk.objects[number]))}
    left: Members = {}
    things: list[Any] = []
    objects = gc.get_objects()
    tensors = {kind for kind in set(map(type, objects)) if tensor in access.mro(kind)}
    for thing in objects:
        if type(thing) in tensors and id(thing) not in walk.index:
            storage = storage_of(thing)
            if storage is not None and storage.bytes and storage.key not in known and storage not in left:
                left[storage] = len(things)
                things.append(thing)
    return things, left
