"""Length and bound of the containers on a referrer path, read without code of the program."""

from __future__ import annotations

import functools
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any

from . import access

_BOUNDED_OWNERS = {
    ("queue", "Queue"): ("queue", "maxsize", ""),
    ("asyncio.queues", "Queue"): ("_queue", "_maxsize", ""),
    ("cachetools", "Cache"): ("_Cache__data", "_Cache__maxsize", "_Cache__currsize"),
}
"""By module and name of a class whose objects bound a container: the attributes with the container, the bound and, if
the bound need not count items, the size."""
_MAX_ITEMS_READ = 65_536
"""Maximum number of items of a list that are compared with None, at 10 ns each; of longer lists, an even sample."""


@dataclass(frozen=True)
class Container:
    """A container on a referrer path."""

    type: str
    """Type: "list", "deque", "lru_cache"."""
    length: int
    """Number of items."""
    size: int
    """The amount that the bound limits: the length, except for a cachetools cache with `getsizeof`: its `currsize`."""
    bound: int
    """Maximum of `size`, from `deque.maxlen` or the `maxsize` of an lru_cache, a queue or a cachetools cache. 0: none
    known."""
    nones: int
    """Items of a list that are None, estimated from a sample for more than 65,536 items; 0 for other types."""


def container_type(container: object) -> str:
    return "lru_cache" if type(container) is functools._lru_cache_wrapper else access.type_name(type(container))


def read_container(container: Any, owner: object = None) -> Container:
    """Return the length and bound of a container. owner: the object that has the container as an attribute."""
    length = access.length(container) or 0
    size, bound = length, 0
    if type(container) is functools._lru_cache_wrapper:
        bound = _as_bound(access.cache_info(container).maxsize)
    elif access.is_a(container, deque):
        bound = _as_bound(deque.__dict__["maxlen"].__get__(container))
    if not bound:
        size, bound = _read_owner(container, owner, length)
    nones = _count_nones(container) if access.is_a(container, list) else 0
    return Container(container_type(container), length, size, bound, nones)


def _as_bound(value: object) -> int:
    """Return a bound as a number. No bound, also one that is infinite or not a number, is 0."""
    if type(value) is int or type(value) is float:
        return int(value) if 0 < value <= sys.maxsize else 0
    return 0


def _read_owner(container: object, owner: object, length: int) -> tuple[int, int]:
    for cls in access.mro(type(owner)):
        names = _BOUNDED_OWNERS.get((access.module_of(cls), access.type_name(cls)))
        if names is not None:
            container_name, bound_name, size_name = names
            values = {name: value for name, value in access.items(access.attributes(owner) or {}) if type(name) is str}
            if values.get(container_name) is container:
                return _as_bound(values.get(size_name)) if size_name else length, _as_bound(values.get(bound_name))
    return length, 0


def _count_nones(items: list[Any]) -> int:
    step = -(-list.__len__(items) // _MAX_ITEMS_READ)
    count = 0
    # Not list.count: it would compare with __eq__ of the items.
    for item in list.__iter__(items if step <= 1 else list.__getitem__(items, slice(None, None, step))):
        if item is None:
            count += 1
    return count * max(step, 1)
