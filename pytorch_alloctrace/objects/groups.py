"""Groups of tensors, or of numpy arrays, with one holder."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass

from . import access
from .back_references import find_back_reference
from .chains import Chain, chain_of
from .holder_search import Members, collection_size, is_submodules, total_bytes
from .inventory import TENSORS_PER_CHECK, tensor_type
from .walk import Walk

MAX_ADDRESSES = 128
"""Maximum number of addresses reported of a group; of more, a random sample."""


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
    """Bytes of the storages whose memory no allocator of torch provided, estimated like `count`: all of `bytes` in a
    group of numpy arrays."""
    tensor_bytes: int = 0
    """Bytes of the tensors, at most those of their storages: fewer than `bytes` if they are views. 0: unknown."""
    dtype: str = ""
    """Data type of all the tensors: "float64"; "" if they have several, or unknown."""

    @property
    def is_garbage(self) -> bool:
        return bool(self.note)

    def __str__(self) -> str:
        return f"{self.chain}, {self.note}" if self.note else str(self.chain)


def create_group(
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
    number = numbers[len(numbers) // 2]
    chain = _chain_to(walk, holder, number, deadline)
    if len(members) > 1:
        path = [walk.objects[object_number] for object_number in walk.path_to(number)]
        chain = dataclasses.replace(chain, back_reference=find_back_reference(path, deadline)[0])
    return Group(
        chain,
        "",
        round(scale * len(members)),
        round(scale * total_bytes(members)),
        sample_addresses(members),
        len(nodes),
        has_all_nodes,
        round(scale * sum(storage.bytes for storage in members if storage.is_foreign)),
        dtype=_find_dtype(walk, members),
    )


def _find_dtype(walk: Walk, members: Members) -> str:
    """Return the data type that all tensors have in common, or ""; without storage objects, which have none."""
    dtype = tensor_type().dtype.__get__  # type: ignore[attr-defined]
    tensors = (walk.objects[number] for number in members.values())
    dtypes = {dtype(tensor) for tensor in tensors if access.is_a(tensor, tensor_type())}
    return str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 else ""


def _chain_to(walk: Walk, holder: int, number: int, deadline: float) -> Chain:
    """Return the referrer path to an object below a holder.

    If the holder is not a container, the path ends at the holder, or at the first node of its graph. `deadline`: end of
    the search for the line that stores into the holder.
    """
    path_numbers = walk.short_path_to(number)
    objects = [walk.objects[object_number] for object_number in path_numbers]
    position = path_numbers.index(holder)
    first_node = next((n for n in range(position, len(objects)) if path_numbers[n] in walk.nodes), position)
    if collection_size(walk, holder) or is_submodules(walk, holder):
        return chain_of(objects, objects[position], deadline=deadline)
    is_part = any(collection_size(walk, above) for above in path_numbers[:position])
    return chain_of(objects[: first_node + 1], objects[position] if is_part else None, deadline=deadline)


def sample_addresses(members: Members) -> tuple[int, ...]:
    addresses = [storage.address for storage in members]
    # Not every tenth: an object with two tensors for each step would lead to the first of them only.
    return tuple(addresses if len(addresses) <= MAX_ADDRESSES else random.Random(0).sample(addresses, MAX_ADDRESSES))
