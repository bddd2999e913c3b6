"""The object scan: a short walk over the objects of the process that groups tensors by what holds them."""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import access
from .chains import Chain, chain_of
from .frames import can_read_frames
from .inventory import Storage, disable_torch_function, storage_of, tensor_type
from .unreached import GARBAGE, find_referrers
from .walk import Walk, Walker

MAX_GROUPS = 16
"""Maximum number of groups reported by number of tensors, and of further groups reported by bytes."""
MIN_GROUPS = 6
"""Minimum number of groups reported, even past the deadline."""
MAX_NODE_GROUPS = 4
"""Maximum number of further groups reported by number of autograd nodes."""
MAX_ADDRESSES = 512
"""Maximum number of addresses reported of a group, evenly sampled."""
MAX_OBJECTS = 2_000_000
_CONTAINERS = (*access.DICTS, *access.SEQUENCES, *access.SETS)
MIN_UNREACHED = 8
"""Minimum number of unreached tensors for a search of garbage and libraries."""
TENSORS_PER_CHECK = 256
MIN_LINKED_LIST = 10
"""Minimum length in objects of a path without a container that counts as a linked list."""
_MODULE_ATTRIBUTES = ("_modules", "_parameters", "_buffers")
"""Attributes of torch modules that are not collections of the program."""
_SAMPLES = 5
"""Approximate number of unreached tensors whose referrers are followed."""


@dataclass(frozen=True)
class Group:
    chain: Chain
    """Referrer path to one of the tensors, written without the index in the container."""
    note: str
    """Note that the tensors are garbage; "" if a root leads to them."""
    count: int
    """Number of storages, estimated if the scan ran out of time."""
    bytes: int
    """Requested bytes of the storages, estimated like `count`."""
    addresses: tuple[int, ...]
    nodes: int = 0
    """Number of autograd nodes that the tensors keep alive. A node counts for one holder, like a storage."""
    has_all_nodes: bool = False
    """False if there may be more nodes: time ran out, or other threads may have been changing graphs."""

    @property
    def is_garbage(self) -> bool:
        return bool(self.note)

    def __str__(self) -> str:
        return f"{self.chain}, {self.note}" if self.note else str(self.chain)


@dataclass(frozen=True)
class ObjectScan:
    groups: tuple[Group, ...]
    """Groups, most tensors first, then groups reported only for their autograd nodes, without addresses."""
    complete: bool
    """False if the scan ran out of time or passed over graphs that other threads may have been changing."""
    seconds: float


def scan_objects(seconds: float, search_unreached: bool = True) -> ObjectScan:
    """Scan the objects of the process for about `seconds` and group the tensors by what holds them.

    `search_unreached`: if the program's variables do not lead to many of the tensors, search the garbage and the
    variables of libraries, which takes longest.
    """
    begin = time.monotonic()
    if not can_read_frames():
        return ObjectScan((), False, 0.0)
    with disable_torch_function():
        return _scan_objects(seconds, begin, search_unreached)


def _scan_objects(seconds: float, begin: float, search_unreached: bool) -> ObjectScan:
    walker = Walker()
    # Leave time for grouping the tensors.
    walk = walker.walk(0.7 * seconds, MAX_OBJECTS, libraries=False)
    garbage_groups: list[Group] = []
    if search_unreached and walk.within_budget and len(_unreached_tensors(walk)[0]) >= MIN_UNREACHED:
        garbage_groups = _find_garbage(walk, begin + 0.6 * seconds) if walk.complete else []
        if not garbage_groups:
            walker.walk_libraries(walk, begin + 0.8 * seconds - time.monotonic(), MAX_OBJECTS)
    path_states: dict[int, _PathState] = {}
    members, read_share = _group_by_holder(walk, path_states, begin + 0.9 * seconds)
    nodes, has_all_nodes = _group_nodes_by_holder(walk, path_states, begin + 0.95 * seconds)
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), -_total_bytes(item[1])))
    largest = ordered[:MAX_GROUPS]
    largest += sorted(ordered[MAX_GROUPS:], key=lambda item: -_total_bytes(item[1]))[:MAX_GROUPS]
    groups = []
    for number, (holder, group) in enumerate(largest):
        if number >= MIN_GROUPS and time.monotonic() - begin > seconds:
            break
        groups.append(_create_group(walk, holder, group, nodes.pop(holder, []), read_share, has_all_nodes))
    ordered_nodes = sorted(nodes.items(), key=lambda item: -len(item[1]))
    for number, (holder, node_group) in enumerate(ordered_nodes[:MAX_NODE_GROUPS]):
        if number and time.monotonic() - begin > seconds:
            break
        reported = _create_group(walk, holder, members.get(holder, {}), node_group, read_share, has_all_nodes)
        groups.append(dataclasses.replace(reported, addresses=()))  # leaks are not named by these groups
    return ObjectScan((*groups, *garbage_groups), walk.complete, time.monotonic() - begin)


Members = dict[Storage, int]
"""Storages, and the number in the walk of a tensor of each."""


def _total_bytes(members: Members) -> int:
    return sum(storage.bytes for storage in members)


def _group_by_holder(
    walk: Walk, path_states: dict[int, _PathState], deadline: float
) -> tuple[dict[int, Members], float]:
    """Return the storages by their holder (see `_PathState`), and the share of the tensors read before the deadline."""
    members: dict[int, Members] = {}
    storage_keys: set[int] = set()
    for position, number in enumerate(walk.tensors):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.monotonic() > deadline:
            return members, position / len(walk.tensors)
        storage = storage_of(walk.objects[number])
        if storage is None or not storage.bytes or not storage.address or storage.key in storage_keys:
            continue
        storage_keys.add(storage.key)
        holder = _find_holder(walk, number, path_states)
        members.setdefault(holder, {})[storage] = number
    return members, 1.0


def _group_nodes_by_holder(
    walk: Walk, path_states: dict[int, _PathState], deadline: float
) -> tuple[dict[int, list[int]], bool]:
    """Return the autograd nodes by their holder, and whether these are all nodes."""
    nodes: dict[int, list[int]] = {}
    for position, number in enumerate(walk.nodes):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.monotonic() > deadline:
            return nodes, False
        nodes.setdefault(_find_holder(walk, number, path_states), []).append(number)
    return nodes, walk.complete


class _PathState(NamedTuple):
    holder: int
    """Number of the fullest container above the object. Without a container: the object itself, the tensor that leads
    to its graph, or the first object of a linked list."""
    size: int
    """Number of items of the container, 0 without one."""
    first: int
    """Number of the first object below the root, -1 for the root."""
    depth: int
    in_graph: bool


def _find_holder(walk: Walk, number: int, states: dict[int, _PathState]) -> int:
    pending = []
    current = number
    while current not in states:
        pending.append(current)
        if walk.parents[current] == current:
            break
        current = walk.parents[current]
    for object_number in reversed(pending):
        parent = walk.parents[object_number]
        if parent == object_number:
            states[object_number] = _PathState(object_number, 0, -1, 0, False)
            continue
        holder, size, first, depth, in_graph = states[parent]
        in_graph = in_graph or object_number in walk.nodes
        first = object_number if first < 0 else first
        parent_size = 0 if parent in walk.nodes else _collection_size(walk, parent)
        if parent_size > size:
            holder, size = parent, parent_size
        elif not size and not in_graph:
            holder = first if depth >= MIN_LINKED_LIST else object_number
        states[object_number] = _PathState(holder, size, first, depth + 1, in_graph)
    return states[number].holder


def _collection_size(walk: Walk, number: int) -> int:
    """Return the number of items of a container; 0 for other objects and for attribute dicts."""
    obj = walk.objects[number]
    if type(obj) is functools._lru_cache_wrapper:
        return access.length(obj) or 0
    if type(obj) not in _CONTAINERS and not any(base in access.mro(type(obj)) for base in _CONTAINERS):
        return 0
    parent = walk.objects[walk.parents[number]]
    if type(obj) is dict and type(parent) not in _CONTAINERS and _is_attribute_dict(obj, parent):
        return 0
    if type(parent) is dict and any(parent.get(name) is obj for name in _MODULE_ATTRIBUTES):
        return 0
    # A container of a single item is not a collection.
    size = access.length(obj) or 0
    return size if size > 1 else 0


def _is_attribute_dict(mapping: dict[Any, Any], parent: Any) -> bool:
    return access.is_class(parent) or (
        all(type(key) is str for key in mapping) and access.attributes(parent) is mapping
    )


def _create_group(
    walk: Walk, holder: int, members: Members, nodes: list[int], read_share: float, has_all_nodes: bool
) -> Group:
    # Extrapolate from the visited share of the container and the share of the tensors that were read.
    scale = 1 / walk.visited_shares.get(holder, 1.0) / (read_share if len(members) >= TENSORS_PER_CHECK // 2 else 1.0)
    numbers = sorted(members.values()) or nodes
    return Group(
        _chain_to(walk, holder, numbers[len(numbers) // 2]),
        "",
        round(scale * len(members)),
        round(scale * _total_bytes(members)),
        _sample_addresses(members),
        len(nodes),
        has_all_nodes,
    )


def _chain_to(walk: Walk, holder: int, number: int) -> Chain:
    """Return the referrer path to an object below a holder; up to the holder if the holder is not a container."""
    path_numbers = walk.path_to(number)
    objects = [walk.objects[object_number] for object_number in path_numbers]
    position = path_numbers.index(holder)
    return chain_of(objects, objects[position]) if _collection_size(walk, holder) else chain_of(objects[: position + 1])


def _sample_addresses(members: Members) -> tuple[int, ...]:
    addresses = [storage.address for storage in members]
    step = max(1, -(-len(addresses) // MAX_ADDRESSES))
    return tuple(addresses[::step])


def _find_garbage(walk: Walk, deadline: float) -> list[Group]:
    """Return a group of the tensors to which no root leads, if most of a few samples are in cycles of the same name."""
    tensors, members = _unreached_tensors(walk)
    if not tensors:
        return []
    samples_by_name: dict[str, list[tuple[Chain, str]]] = {}
    samples = tensors[:: max(1, len(tensors) // _SAMPLES)]
    for tensor in samples:
        if time.monotonic() > deadline:
            break
        chain, note = find_referrers(tensor, walk, [tensors, samples])
        # A tensor that is in no cycle may be held by a library.
        if chain is not None and note == GARBAGE:
            samples_by_name.setdefault(str(chain), []).append((chain, note))
    largest = max(samples_by_name.values(), key=len, default=[])
    if 2 * len(largest) <= len(samples):  # several kinds, no name, or no time
        return []
    chain, note = largest[0]
    return [Group(chain, note, len(members), _total_bytes(members), _sample_addresses(members))]


def _unreached_tensors(walk: Walk) -> tuple[list[Any], Members]:
    """Return the tensors that the walk did not reach, one of each storage."""
    base = tensor_type()
    reached_keys = {storage.key for number in walk.tensors if (storage := storage_of(walk.objects[number]))}
    members: Members = {}
    unreached_tensors: list[Any] = []
    objects = gc.get_objects()
    tensor_types = {cls for cls in set(map(type, objects)) if base in access.mro(cls)}
    for obj in objects:
        if type(obj) in tensor_types and id(obj) not in walk.index:
            storage = storage_of(obj)
            if storage is not None and storage.bytes and storage.key not in reached_keys and storage not in members:
                members[storage] = len(unreached_tensors)
                unreached_tensors.append(obj)
    return unreached_tensors, members
