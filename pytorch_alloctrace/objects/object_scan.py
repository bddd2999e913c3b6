"""The object scan: a short walk over the objects of the process that groups tensors by what holds them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import itertools
import random
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import access
from .chains import Chain, chain_of
from .frames import can_read_frames
from .inventory import Storage, bytes_of, disable_torch_function, storage_of, tensor_type, weak_reference_of
from .stores import UNKNOWN
from .unreached import CPP_CYCLE, GARBAGE, find_cycle, find_referrers
from .walk import Walk, Walker, reference_pairs

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

MAX_GROUPS = 16
"""Maximum number of groups reported by number of tensors, and of further groups reported by bytes."""
MIN_GROUPS = 6
"""Minimum number of groups reported, even past the deadline."""
MAX_NODE_GROUPS = 4
"""Maximum number of further groups reported by number of autograd nodes."""
MAX_ADDRESSES = 128
"""Maximum number of addresses reported of a group; of more, a random sample."""
MAX_OBJECTS = 2_000_000
MIN_UNREACHED = 8
"""Minimum number of unreached tensors for a search of garbage and libraries."""
TENSORS_PER_CHECK = 256
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
_CPP_SAMPLES = 16
"""Maximum number of unreached tensors of which it is examined whether a Python object refers to them."""
_MIN_UNREACHED_S = 0.02
"""Minimum seconds of a walk from unreached tensors, even past the deadline."""
_SAMPLES, _MIN_SAMPLES = 5, 2
"""Approximate number of unreached tensors whose referrers are followed, and the number followed past the deadline."""


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
    foreign_bytes: int = 0
    """Bytes of the storages whose memory no allocator of torch provided, estimated like `count`."""
    tensor_bytes: int = 0
    """Bytes of the tensors, at most those of their storages: fewer than `bytes` if they are views. 0: unknown."""

    @property
    def is_garbage(self) -> bool:
        return bool(self.note)

    def __str__(self) -> str:
        return f"{self.chain}, {self.note}" if self.note else str(self.chain)


class ModuleTensor(NamedTuple):
    """Parameter or buffer of a `torch.nn.Module`, or state that an optimizer keeps for a parameter."""

    name: str
    """Name as in `named_parameters()` of the outermost module: "layers.0.weight"; of state: "layers.0.weight.step"."""
    kind: TensorKind
    module: int
    """Address of the module that has it; of state, of the module of its parameter."""
    storage: Storage
    reference: StorageWeakRef


class TensorKind(enum.IntEnum):
    """Kind of a `ModuleTensor`. A block of several kinds has the first."""

    PARAMETER = 0
    BUFFER = 1
    OPTIMIZER_STATE = 2


class ScanResult(enum.Enum):
    """How an object scan ended: `result` of a final scan in the trace."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    """The scan ran out of time, or reached the maximum number of objects."""
    GRAPHS_IN_USE = "graphs in use"
    """The scan passed over graphs that other threads may have been changing."""
    FAILED = "failed"
    """The scan did not run, or ended in an error."""
    UNSUPPORTED = "unsupported"
    """This Python has no GIL or an unexpected memory layout: no object can be scanned."""


@dataclass(frozen=True)
class ObjectScan:
    groups: tuple[Group, ...]
    """Groups, most tensors first, then groups reported only for their autograd nodes, without addresses."""
    module_tensors: tuple[ModuleTensor, ...]
    """Parameters and buffers of the modules that the scan reached; parameters first."""
    result: ScanResult
    objects: int
    """Number of visited objects."""
    unlisted: int
    """Number of storages of tensors that Python objects hold, but that are in none of the groups."""

    @property
    def complete(self) -> bool:
        return self.result is ScanResult.COMPLETE

    @property
    def is_truncated(self) -> bool:
        return self.result is ScanResult.TRUNCATED


def scan_objects(seconds: float, search_unreached: bool = True) -> ObjectScan:
    """Scan the objects of the process for about `seconds` of processor time; group the tensors by what holds them.

    `search_unreached`: if the program's variables do not lead to many of the tensors, search the garbage and the
    variables of libraries, which takes longest.
    """
    begin = time.thread_time()
    if not can_read_frames():
        return ObjectScan((), (), ScanResult.UNSUPPORTED, 0, 0)
    with disable_torch_function():
        return _scan_objects(seconds, begin, search_unreached)


def _scan_objects(seconds: float, begin: float, search_unreached: bool) -> ObjectScan:
    walker = Walker()
    # Leave time for grouping the tensors.
    walk = walker.walk(0.7 * seconds, MAX_OBJECTS, libraries=False)
    garbage_groups: list[Group] = []
    unlisted = 0
    is_searched = not search_unreached
    has_time = time.thread_time() - begin < 0.5 * seconds
    if search_unreached and has_time and walk.within_budget:
        is_searched = True
        tensors = _unreached_tensors(walk)
        unlisted = len(tensors)
        if unlisted >= MIN_UNREACHED:
            if walk.complete:
                garbage_groups = _find_tensor_cycles(walker, walk, tensors, begin + 0.6 * seconds)
                unlisted = len(tensors)
            garbage = []
            if walk.complete and unlisted >= MIN_UNREACHED:
                garbage = _find_garbage(walker, walk, tensors, begin + 0.6 * seconds, begin + seconds)
                garbage_groups += garbage
            del tensors[:]
            if unlisted >= MIN_UNREACHED and not garbage:
                walker.walk_libraries(walk, begin + 0.8 * seconds - time.thread_time(), MAX_OBJECTS)
                is_searched = time.thread_time() - begin < 0.85 * seconds
                unlisted = _count_held_unreached(walk) if is_searched else 0
            else:
                unlisted = 0
    holders = _HolderSearch(walk)
    storages: dict[int, Storage] = {}
    members, read_share, tensor_bytes = _group_by_holder(walk, holders, begin + 0.9 * seconds, storages)
    is_searched &= read_share == 1.0
    nodes, has_all_nodes = _group_nodes_by_holder(walk, holders, begin + 0.95 * seconds)
    for holder, common in holders.find_common_containers(members).items():
        members.setdefault(common, {}).update(members.pop(holder))
        nodes.setdefault(common, []).extend(nodes.pop(holder, []))
    for holder in [*members]:
        if time.thread_time() > begin + 0.95 * seconds:
            break
        part = holders.find_main_part(holder, members[holder], nodes.get(holder, []), begin + 0.95 * seconds)
        if part != holder:
            is_below = holders.below(part)
            group, group_nodes = members.pop(holder), nodes.pop(holder, [])
            for owner, is_of_part in ((part, True), (holder, False)):
                owned = {storage: number for storage, number in group.items() if is_below(number) == is_of_part}
                members.update({owner: owned} if owned else {})
                owned_nodes = [number for number in group_nodes if is_below(number) == is_of_part]
                nodes.update({owner: owned_nodes} if owned_nodes else {})
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), -_total_bytes(item[1])))
    largest = ordered[:MAX_GROUPS]
    largest += sorted(ordered[MAX_GROUPS:], key=lambda item: -_total_bytes(item[1]))[:MAX_GROUPS]
    groups = []
    for number, (holder, group) in enumerate(largest):
        if number >= MIN_GROUPS and time.thread_time() - begin > seconds:
            break
        created = _create_group(walk, holder, group, nodes.pop(holder, []), read_share, has_all_nodes, begin + seconds)
        share = sum(tensor_bytes[storage.key] for storage in group) / max(_total_bytes(group), 1)
        share /= walk.visited_shares.get(holder, 1.0) * read_share  # other views of these storages were not read
        groups.append(dataclasses.replace(created, tensor_bytes=round(min(share, 1.0) * created.bytes)))
    unlisted += sum(map(len, members.values())) - sum(len(group) for _, group in largest[: len(groups)])
    ordered_nodes = sorted(nodes.items(), key=lambda item: -len(item[1]))
    for number, (holder, node_group) in enumerate(ordered_nodes[:MAX_NODE_GROUPS]):
        if number and time.thread_time() - begin > seconds:
            break
        reported = _create_group(
            walk, holder, members.get(holder, {}), node_group, read_share, has_all_nodes, begin + seconds
        )
        groups.append(dataclasses.replace(reported, addresses=()))  # leaks are not named by these groups
    module_tensors = tuple(
        sorted(_find_module_tensors(walk, storages, begin + seconds), key=lambda tensor: tensor.kind)
    )
    result = ScanResult.GRAPHS_IN_USE if walk.unread else ScanResult.COMPLETE
    if not walk.within_budget or not is_searched:
        result = ScanResult.TRUNCATED
    return ObjectScan((*groups, *garbage_groups), module_tensors, result, len(walk.objects), unlisted)


Members = dict[Storage, int]
"""Storages, and the number in the walk of a tensor of each."""


def _total_bytes(members: Members) -> int:
    return sum(storage.bytes for storage in members)


def _group_by_holder(
    walk: Walk, holders: _HolderSearch, deadline: float, storages: dict[int, Storage]
) -> tuple[dict[int, Members], float, Counter[int]]:
    """Return the storages by their holder (see `_PathState`), the share of the tensors read, and the tensors' bytes.

    The bytes are by the key of the storage. Reading ends at the deadline. Adds the storages to `storages`, by the
    number of each tensor in the walk.
    """
    members: dict[int, Members] = {}
    tensor_bytes: Counter[int] = Counter()
    for position, number in enumerate(walk.tensors):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.thread_time() > deadline:
            return members, position / len(walk.tensors), tensor_bytes
        storage = storage_of(walk.objects[number])
        if storage is None or not storage.bytes or not storage.address:
            continue
        storages[number] = storage
        if storage.key not in tensor_bytes:
            members.setdefault(holders.holder_of(number), {})[storage] = number
        tensor_bytes[storage.key] += bytes_of(walk.objects[number], storage)
    return members, 1.0, tensor_bytes


def _group_nodes_by_holder(walk: Walk, holders: _HolderSearch, deadline: float) -> tuple[dict[int, list[int]], bool]:
    """Return the autograd nodes by their holder, and whether these are all nodes."""
    nodes: dict[int, list[int]] = {}
    for position, number in enumerate(walk.nodes):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.thread_time() > deadline:
            return nodes, False
        nodes.setdefault(holders.holder_of(number), []).append(number)
    return nodes, walk.complete


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


class _HolderSearch:
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
        minimum = MIN_MAIN_SHARE * _total_bytes(members)
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
            if self._size_of(parent) or _is_submodules(walk, parent):
                return parent, tuple(type_ids)
            if type(walk.objects[parent]) is not dict:
                type_ids.append(id(type(walk.objects[parent])))
            number = parent
        return -1, ()

    def _size_of(self, number: int) -> int:
        if number not in self._sizes:
            self._sizes[number] = 0 if number in self._walk.nodes else _collection_size(self._walk, number)
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


def _collection_size(walk: Walk, number: int) -> int:
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


def _is_submodules(walk: Walk, number: int) -> bool:
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


def _find_module_tensors(walk: Walk, storages: dict[int, Storage], deadline: float) -> Iterator[ModuleTensor]:
    """Yield the parameters and buffers of the modules in the walk, and until a deadline the state of their optimizers.

    Reads only the attributes of modules and optimizers.
    """
    import torch

    modules = _select_instances(walk.objects, torch.nn.Module)
    attributes = {id(module): access.attributes(module) or {} for module in modules}
    child_ids = {id(child) for own in attributes.values() for _, child in _named_items(own, "_modules")}
    # Last, hence read first, are the outermost modules: a submodule has the name that it has there.
    pending = [("", number, own) for number, own in attributes.items()]
    pending.sort(key=lambda item: item[1] not in child_ids)
    visited_ids: set[int] = set()
    parameters: dict[int, tuple[str, int]] = {}
    while pending:
        prefix, module_id, own = pending.pop()
        if module_id in visited_ids:
            continue
        visited_ids.add(module_id)
        for attribute, kind in (("_parameters", TensorKind.PARAMETER), ("_buffers", TensorKind.BUFFER)):
            for name, tensor in _named_items(own, attribute):
                parameters.setdefault(id(tensor), (prefix + name, module_id))
                for storage, owner in _storages_of(walk, tensor, storages):
                    yield ModuleTensor(prefix + name, kind, module_id, storage, weak_reference_of(owner))
        for name, child in _named_items(own, "_modules"):
            if id(child) in attributes:
                pending.append((f"{prefix}{name}.", id(child), attributes[id(child)]))

    for optimizer in _select_instances(walk.objects, torch.optim.Optimizer):
        states = (access.attributes(optimizer) or {}).get("state")
        for position, (parameter, state) in enumerate(access.items(states) if access.is_a(states, dict) else []):
            if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.thread_time() > deadline:
                return
            name, module_id = parameters.get(id(parameter), ("", 0))
            for key, value in access.items(state) if name and access.is_a(state, dict) else []:
                if type(key) is str:
                    for storage, owner in _storages_of(walk, value, storages):
                        kind, reference = TensorKind.OPTIMIZER_STATE, weak_reference_of(owner)
                        yield ModuleTensor(f"{name}.{key}", kind, module_id, storage, reference)


def _named_items(attributes: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    values = attributes.get(name)
    items: list[Any] = access.items(values) if access.is_a(values, dict) else []
    return [(key, value) for key, value in items if type(key) is str and value is not None]


def _storages_of(walk: Walk, tensor: Any, storages: dict[int, Storage]) -> list[tuple[Storage, Any]]:
    """Return the storage of a tensor, or those of the tensors that it wraps, such as the shard of a DTensor.

    Each with the tensor that has it.
    """
    storage = storages.get(walk.index.get(id(tensor), -1))
    if storage is not None:
        return [(storage, tensor)]
    if not access.is_a(tensor, tensor_type()):
        return []
    wrapped = [(walk.index.get(id(value), -1), value) for value in (access.attributes(tensor) or {}).values()]
    return [(storages[number], value) for number, value in wrapped if number in storages]


def _create_group(
    walk: Walk,
    holder: int,
    members: Members,
    nodes: list[int],
    read_share: float,
    has_all_nodes: bool,
    deadline: float,
) -> Group:
    # Extrapolate from the visited share of the container and the share of the tensors that were read.
    scale = 1 / walk.visited_shares.get(holder, 1.0) / (read_share if len(members) >= TENSORS_PER_CHECK // 2 else 1.0)
    numbers = sorted(members.values()) or nodes
    return Group(
        _chain_to(walk, holder, numbers[len(numbers) // 2], deadline),
        "",
        round(scale * len(members)),
        round(scale * _total_bytes(members)),
        _sample_addresses(members),
        len(nodes),
        has_all_nodes,
        round(scale * sum(storage.bytes for storage in members if storage.is_foreign)),
    )


def _chain_to(walk: Walk, holder: int, number: int, deadline: float) -> Chain:
    """Return the referrer path to an object below a holder.

    If the holder is not a container, the path ends at the holder, or at the first node of its graph. `deadline`: end of
    the search for the line that stores into the holder.
    """
    path_numbers = walk.short_path_to(number)
    objects = [walk.objects[object_number] for object_number in path_numbers]
    position = path_numbers.index(holder)
    first_node = next((n for n in range(position, len(objects)) if path_numbers[n] in walk.nodes), position)
    if _collection_size(walk, holder) or _is_submodules(walk, holder):
        return chain_of(objects, objects[position], deadline=deadline)
    is_part = any(_collection_size(walk, above) for above in path_numbers[:position])
    return chain_of(objects[: first_node + 1], objects[position] if is_part else None, deadline=deadline)


def _sample_addresses(members: Members) -> tuple[int, ...]:
    addresses = [storage.address for storage in members]
    # Not every tenth: an object with two tensors for each step would lead to the first of them only.
    return tuple(addresses if len(addresses) <= MAX_ADDRESSES else random.Random(0).sample(addresses, MAX_ADDRESSES))


def _find_tensor_cycles(walker: Walker, walk: Walk, tensors: list[Any], deadline: float) -> list[Group]:
    """Return groups of what unreached tensors keep that refer to themselves: see `Walker.find_possible_cycle`.

    Removes the tensors of the groups from `tensors`.
    """
    roots: dict[type, list[Any]] = {}
    for position, tensor in enumerate(tensors):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.thread_time() > deadline:
            break
        reference = walker.find_possible_cycle(tensor)
        if reference is not None:
            roots.setdefault(type(reference), []).append(tensor)
        del reference
    groups = []
    for group_roots in roots.values():
        if time.thread_time() > deadline:
            break
        samples = group_roots[:: -(-len(group_roots) // _SAMPLES)]
        seconds = max((deadline - time.thread_time()) / 2, _MIN_UNREACHED_S)
        chains = [find_cycle(sample, walker, walk, seconds / len(samples)) for sample in samples]
        cycles = [(chain, note) for chain, note in chains if chain is not None]
        if 2 * len(cycles) <= len(samples):
            continue
        below = walker.walk_unreached(walk, group_roots, seconds, MAX_OBJECTS)
        members = _members_of(walk, below)
        tensors[:] = [tensor for tensor in tensors if below.index.get(id(tensor), -1) < 0]
        addresses = _sample_addresses(members)
        chain, note = cycles[0]
        groups.append(Group(chain, note, len(members), _total_bytes(members), addresses, len(below.nodes)))
    return groups


def _find_garbage(walker: Walker, walk: Walk, tensors: list[Any], deadline: float, last_deadline: float) -> list[Group]:
    """Return a group of the tensors to which no root leads, if most of a few samples are in cycles of the same owner.

    `deadline`: after it only `_MIN_SAMPLES` are followed, until `last_deadline`.
    """
    if time.thread_time() > deadline:
        return []
    samples_by_owner: dict[str, list[tuple[Chain, str]]] = {}
    samples = tensors[:: max(1, len(tensors) // _SAMPLES)]
    read = 0
    for tensor in samples:
        if read >= _MIN_SAMPLES and time.thread_time() > deadline:
            break
        read += 1
        chain, note = find_referrers(tensor, walk, [tensors, samples], last_deadline)
        # A tensor that is in no cycle may be held by a library.
        if chain is not None and note in (GARBAGE, CPP_CYCLE):
            owner = chain.holder.partition(".")[0].partition("[")[0]
            samples_by_owner.setdefault(owner, []).append((chain, note))
    owner, largest = max(samples_by_owner.items(), key=lambda item: len(item[1]), default=("", []))
    if 2 * len(largest) <= read:  # several kinds, or no name
        return []
    chain, note = largest[0]
    if any(other.holder != chain.holder for other, _ in largest):
        chain = dataclasses.replace(chain, path=owner, holder=owner, container="", containers=(), store=UNKNOWN)
    seconds = max(last_deadline - time.thread_time(), _MIN_UNREACHED_S)
    members = _members_of(walk, walker.walk_unreached(walk, tensors, seconds, MAX_OBJECTS))
    return [Group(chain, note, len(members), _total_bytes(members), _sample_addresses(members))]


def _count_held_unreached(walk: Walk) -> int:
    """Return the number of storages of unreached tensors to which a Python object refers, estimated from a sample."""
    tensors = _unreached_tensors(walk)
    if not tensors:
        return 0
    samples = tensors[:: -(-len(tensors) // _CPP_SAMPLES)]
    held_ids: set[int] = set()
    for referrer in gc.get_referrers(*samples):  # one visit of all objects
        if id(referrer) not in (id(tensors), id(samples)) and type(referrer) is not types.FrameType:
            held_ids.update(map(id, gc.get_referents(referrer)))
    return round(sum(id(tensor) in held_ids for tensor in samples) / len(samples) * len(tensors))


def _unreached_tensors(walk: Walk) -> list[Any]:
    """Return the tensors that the walk did not reach, one of each storage."""
    storage_keys = _reached_keys(walk)
    unreached_tensors: list[Any] = []
    for obj in _select_instances(gc.get_objects(), tensor_type()):
        if id(obj) not in walk.index:
            storage = storage_of(obj)
            if storage is not None and storage.bytes and storage.key not in storage_keys:
                storage_keys.add(storage.key)
                unreached_tensors.append(obj)
    return unreached_tensors


def _select_instances(objects: list[Any], base: type) -> Iterator[Any]:
    """Yield the instances of a class of torch. Fast: most objects are skipped without Python code."""
    return itertools.compress(objects, map(issubclass, map(type, objects), itertools.repeat(base)))


def _reached_keys(walk: Walk) -> set[int]:
    return {storage.key for number in walk.tensors if (storage := storage_of(walk.objects[number]))}


def _members_of(walk: Walk, below: Walk) -> Members:
    """Return the storages of the tensors of a walk from unreached tensors."""
    reached_keys = _reached_keys(walk)
    members: Members = {}
    for number in below.tensors:
        storage = storage_of(below.objects[number])
        if storage is not None and storage.bytes and storage.address and storage.key not in reached_keys:
            members.setdefault(storage, number)
    return members
