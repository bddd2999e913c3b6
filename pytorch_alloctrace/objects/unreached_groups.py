"""Groups of tensors to which no variable of the program leads: reference cycles and garbage."""

from __future__ import annotations

import dataclasses
import gc
import time
import types
from typing import Any

from .chains import Chain
from .groups import Group, sample_addresses
from .holder_search import Members, total_bytes
from .inventory import TENSORS_PER_CHECK, select_instances, storage_of, tensor_type
from .roots import FrameRoot
from .stores import UNKNOWN
from .unreached import CPP_CYCLE, GARBAGE, describe_path, find_cycle, find_paths
from .walk import MAX_OBJECTS, Walk, Walker

_CPP_SAMPLES = 16
"""Maximum number of unreached tensors of which it is examined whether a Python object refers to them."""
_MIN_UNREACHED_S = 0.02
"""Minimum seconds of a walk from unreached tensors, even past the deadline."""
_SAMPLES = 5
"""Approximate number of unreached tensors whose referrers are followed."""


def find_unreached_tensors(walk: Walk) -> list[Any]:
    """Return the tensors that the walk did not reach, one of each storage."""
    storage_keys = _reached_keys(walk)
    unreached_tensors: list[Any] = []
    for obj in select_instances(gc.get_objects(), tensor_type()):
        if id(obj) not in walk.index:
            storage = storage_of(obj)
            if storage is not None and storage.bytes and storage.key not in storage_keys:
                storage_keys.add(storage.key)
                unreached_tensors.append(obj)
    return unreached_tensors


def find_tensor_cycles(walker: Walker, walk: Walk, tensors: list[Any], deadline: float) -> list[Group]:
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
        addresses = sample_addresses(members)
        chain, note = cycles[0]
        groups.append(Group(chain, note, len(members), total_bytes(members), addresses, len(below.nodes)))
    return groups


def find_garbage(
    walker: Walker, walk: Walk, tensors: list[Any], deadline: float, last_deadline: float, *, at_end: bool
) -> list[Group]:
    """Return a group of the tensors to which no root leads, if most of a few samples are in cycles of the same owner.

    The search of referrers does not begin after `deadline`, and ends at `last_deadline`. `at_end`: the recording
    ends. If no function of the program runs any more, the objects of one cycle may have been in use until then: they
    are a group without the note on garbage.
    """
    if time.thread_time() > deadline:
        return []
    seconds = max((last_deadline - time.thread_time()) / 2, _MIN_UNREACHED_S)
    below = walker.walk_unreached(walk, tensors, seconds, MAX_OBJECTS)
    # Parameters refer to gradients in C++, so these are in no cycle.
    candidates = [tensor for tensor in tensors if id(tensor) not in below.gradients] or tensors
    samples = candidates[:: max(1, len(candidates) // _SAMPLES)]
    chains_by_owner: dict[str, list[tuple[Any, Chain, str]]] = {}
    for objects, is_cycle in find_paths(samples, walk, [tensors, candidates, samples, below.objects], last_deadline):
        chain, note = describe_path(objects, is_cycle=is_cycle, deadline=last_deadline) if is_cycle else (None, "")
        # A tensor that is in no cycle may be held by a library.
        if chain is not None and note in (GARBAGE, CPP_CYCLE):
            owner = chain.holder.partition(".")[0].partition("[")[0]
            chains_by_owner.setdefault(owner, []).append((objects[0], chain, note))
    owner, largest = max(chains_by_owner.items(), key=lambda item: len(item[1]), default=("", []))
    if 2 * len(largest) <= len(samples):  # several kinds, or no name
        return []
    top, chain, note = largest[0]
    if at_end and not any(type(root) is FrameRoot and not root.is_library for root in walk.objects):
        island = walker.walk_unreached(walk, [top], _MIN_UNREACHED_S, MAX_OBJECTS)
        if all(island.index.get(id(other), -1) >= 0 for other, _, _ in largest):
            chain, note = dataclasses.replace(chain, back_reference="", store=UNKNOWN), ""
    if any(other.holder != chain.holder for _, other, _ in largest):
        store = chain.store if len({other.store for _, other, _ in largest}) == 1 else UNKNOWN
        chain = dataclasses.replace(chain, path=owner, holder=owner, container="", containers=(), store=store)
    members = _members_of(walk, below)
    return [Group(chain, note, len(members), total_bytes(members), sample_addresses(members))]


def count_held_unreached(walk: Walk) -> int:
    """Return the number of storages of unreached tensors to which a Python object refers, estimated from a sample."""
    tensors = find_unreached_tensors(walk)
    if not tensors:
        return 0
    samples = tensors[:: -(-len(tensors) // _CPP_SAMPLES)]
    held_ids: set[int] = set()
    for referrer in gc.get_referrers(*samples):  # one visit of all objects
        if id(referrer) not in (id(tensors), id(samples)) and type(referrer) is not types.FrameType:
            held_ids.update(map(id, gc.get_referents(referrer)))
    return round(sum(id(tensor) in held_ids for tensor in samples) / len(samples) * len(tensors))


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
