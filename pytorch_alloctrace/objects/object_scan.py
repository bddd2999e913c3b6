"""The object scan: a short walk over the objects of the process that groups tensors by what holds them."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from . import access
from .chains import UNUSED
from .frames import can_read_frames
from .groups import Group, create_group
from .holder_search import HolderSearch, Members, total_bytes
from .inventory import TENSORS_PER_CHECK, Storage, bytes_of, disable_torch_function, storage_of
from .module_tensors import ModuleTensor, find_module_tensors
from .roots import modules
from .unreached_groups import count_held_unreached, find_garbage, find_tensor_cycles, find_unreached_tensors
from .unused_variables import is_unused
from .walk import MAX_OBJECTS, Walk, Walker

FIRST_TENSORS = 1024
"""Number of tensors, nearest to the roots, that are read first."""
_READING_PASSES = 17
"""Number of passes over the others. A prime: the steps of a loop make a fixed number of tensors."""
MAX_GROUPS = 16
"""Maximum number of groups reported by number of tensors, and of further groups reported by bytes."""
MIN_GROUPS = 6
"""Minimum number of groups reported, even past the deadline."""
MAX_NODE_GROUPS = 4
"""Maximum number of further groups reported by number of autograd nodes."""
MAX_ARRAY_GROUPS = 4
"""Maximum number of groups of numpy arrays reported by bytes."""
MIN_ARRAY_BYTES = 1 << 20
"""Minimum number of bytes of a group of numpy arrays."""
MIN_UNUSED_BYTES = 16 << 20
"""Minimum number of bytes of a local variable for a search whether its function still reads it."""
MIN_UNREACHED = 8
"""Minimum number of unreached tensors for a search of garbage and libraries."""


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
    """Groups, most tensors first; then, without addresses, those reported for autograd nodes and of numpy arrays."""
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


def scan_objects(seconds: float, search_unreached: bool = True, *, at_end: bool = False) -> ObjectScan:
    """Scan the objects of the process for about `seconds` of processor time; group the tensors by what holds them.

    `search_unreached`: if the program's variables do not lead to many of the tensors, search the garbage and the
    variables of libraries, which takes longest. `at_end`: the recording ends.
    """
    if not can_read_frames():
        return ObjectScan((), (), ScanResult.UNSUPPORTED, 0, 0)
    modules()  # not within `seconds`: classifies thousands of modules, once until others are imported
    begin = time.thread_time()
    with disable_torch_function():
        return _scan_objects(seconds, begin, search_unreached, at_end)


def _scan_objects(seconds: float, begin: float, search_unreached: bool, at_end: bool) -> ObjectScan:
    walker = Walker()
    # Leave time for grouping the tensors.
    walk = walker.walk(0.7 * seconds, MAX_OBJECTS, libraries=False)
    garbage_groups: list[Group] = []
    unlisted = 0
    is_searched = not search_unreached
    has_time = time.thread_time() - begin < 0.5 * seconds
    if search_unreached and has_time and walk.within_budget:
        is_searched = True
        tensors = find_unreached_tensors(walk)
        unlisted = len(tensors)
        if unlisted >= MIN_UNREACHED:
            if walk.complete:
                garbage_groups = find_tensor_cycles(walker, walk, tensors, begin + 0.6 * seconds)
                unlisted = len(tensors)
            garbage = []
            if walk.complete and unlisted >= MIN_UNREACHED:
                deadlines = begin + 0.6 * seconds, begin + seconds
                garbage = find_garbage(walker, walk, tensors, *deadlines, at_end=at_end)
                garbage_groups += garbage
            del tensors[:]
            if unlisted >= MIN_UNREACHED and not garbage:
                walker.walk_libraries(walk, begin + 0.8 * seconds - time.thread_time(), MAX_OBJECTS)
                is_searched = time.thread_time() - begin < 0.85 * seconds
                unlisted = count_held_unreached(walk) if is_searched else 0
            else:
                unlisted = 0
    holders = HolderSearch(walk)
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
    ordered = sorted(members.items(), key=lambda item: (-len(item[1]), -total_bytes(item[1])))
    largest = ordered[:MAX_GROUPS]
    largest += sorted(ordered[MAX_GROUPS:], key=lambda item: -total_bytes(item[1]))[:MAX_GROUPS]
    groups = []
    for number, (holder, group) in enumerate(largest):
        if number >= MIN_GROUPS and time.thread_time() - begin > seconds:
            break
        created = create_group(walk, holder, group, nodes.pop(holder, []), read_share, has_all_nodes, begin + seconds)
        share = sum(tensor_bytes[storage.key] for storage in group) / max(total_bytes(group), 1)
        share /= walk.visited_shares.get(holder, 1.0) * read_share  # other views of these storages were not read
        created = dataclasses.replace(created, tensor_bytes=round(min(share, 1.0) * created.bytes))
        is_candidate = walk.complete and created.bytes >= MIN_UNUSED_BYTES and not created.chain.through
        if is_candidate and time.thread_time() < begin + seconds:
            keys = {storage.key for storage in group}
            if is_unused(walk, holders, next(iter(group.values())), keys, storages):
                created = dataclasses.replace(created, chain=dataclasses.replace(created.chain, through=UNUSED))
        groups.append(created)
    unlisted += sum(map(len, members.values())) - sum(len(group) for _, group in largest[: len(groups)])
    ordered_nodes = sorted(nodes.items(), key=lambda item: -len(item[1]))
    for number, (holder, node_group) in enumerate(ordered_nodes[:MAX_NODE_GROUPS]):
        if number and time.thread_time() - begin > seconds:
            break
        reported = create_group(
            walk, holder, members.get(holder, {}), node_group, read_share, has_all_nodes, begin + seconds
        )
        groups.append(dataclasses.replace(reported, addresses=()))  # leaks are not named by these groups
    groups += _group_arrays(walk, holders, begin + seconds)
    module_tensors = tuple(sorted(find_module_tensors(walk, storages, begin + seconds), key=lambda tensor: tensor.kind))
    result = ScanResult.GRAPHS_IN_USE if walk.unread else ScanResult.COMPLETE
    if not walk.within_budget or not is_searched:
        result = ScanResult.TRUNCATED
    return ObjectScan((*groups, *garbage_groups), module_tensors, result, len(walk.objects), unlisted)


def _group_by_holder(
    walk: Walk, holders: HolderSearch, deadline: float, storages: dict[int, Storage]
) -> tuple[dict[int, Members], float, Counter[int]]:
    """Return the storages by their holder (see `_PathState`), the share of the tensors read, and the tensors' bytes.

    The bytes are by the key of the storage. Reading ends at the deadline. Adds the storages to `storages`, by the
    number of each tensor in the walk.
    """
    members: dict[int, Members] = {}
    tensor_bytes: Counter[int] = Counter()
    # The first and the last tensors of a graph differ in size: what is read before the deadline is of all parts.
    rest = walk.tensors[FIRST_TENSORS:]
    passes = (rest[start::_READING_PASSES] for start in range(_READING_PASSES))
    for position, number in enumerate(itertools.chain(walk.tensors[:FIRST_TENSORS], *passes)):
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


def _group_arrays(walk: Walk, holders: HolderSearch, deadline: float) -> Iterator[Group]:
    """Yield the groups of numpy arrays that have the most memory; none after the deadline."""
    members: dict[int, Members] = {}
    for position, number in enumerate(walk.arrays):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.thread_time() > deadline:
            return
        array = walk.objects[number]
        size = access.array_bytes(array)
        if size and access.array_base(array) is None:
            storage = Storage(id(array), 0, size, "cpu", is_foreign=True)
            members.setdefault(holders.holder_of(number), {})[storage] = number
    for holder, common in holders.find_common_containers(members).items():
        members.setdefault(common, {}).update(members.pop(holder))
    largest = sorted(members.items(), key=lambda item: -total_bytes(item[1]))[:MAX_ARRAY_GROUPS]
    for holder, group in largest:
        if total_bytes(group) < MIN_ARRAY_BYTES or time.thread_time() > deadline:
            return
        created = create_group(walk, holder, group, [], 1.0, walk.complete, deadline)
        yield dataclasses.replace(created, addresses=())


def _group_nodes_by_holder(walk: Walk, holders: HolderSearch, deadline: float) -> tuple[dict[int, list[int]], bool]:
    """Return the autograd nodes by their holder, and whether these are all nodes."""
    nodes: dict[int, list[int]] = {}
    for position, number in enumerate(walk.nodes):
        if position % TENSORS_PER_CHECK == TENSORS_PER_CHECK - 1 and time.thread_time() > deadline:
            return nodes, False
        nodes.setdefault(holders.holder_of(number), []).append(number)
    return nodes, walk.complete
