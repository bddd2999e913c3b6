"""All tensors that are alive, by the memory that they share, with a name for each and what it is to a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import access
from .chains import chain_of
from .graphs import load_reader
from .storages import Storage, disable_torch_function, storage_of, tensor_type, weak_reference_of
from .walk import Walk, Walker

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

OBJECTS = 30_000_000
NAMED = 20_000
"""Most pieces of memory that get a name, the largest."""


@dataclass(frozen=True)
class Item:
    """A piece of memory and the tensors that share it."""

    name: str
    """As in `holders`: `trainer.predictions[12]`."""
    holder: str
    """In words: `Chain.__str__`."""
    storage: Storage
    reference: StorageWeakRef
    """Weak: `storage.key` means this storage, and no later one, as long as it is kept."""
    shape: tuple[int, ...]
    """Of the largest of the tensors."""
    dtype: str
    tensors: int
    requires_grad: bool
    """Whether any of them does."""
    role: str


@dataclass(frozen=True)
class Inventory:
    """What was found, the largest first."""

    items: tuple[Item, ...]
    complete: bool


def inventory(seconds: float) -> Inventory:
    """Looks for at most about so many seconds. What is only in autograd graphs has the name of what leads there."""
    load_reader()
    with disable_torch_function():
        walk = Walker().walk(seconds, OBJECTS)
        members: dict[int, list[int]] = {}
        storages: dict[int, Storage] = {}
        for number in walk.tensors:
            storage = storage_of(walk.objects[number])
            if storage is not None and storage.bytes:
                storages.setdefault(storage.key, storage)
                members.setdefault(storage.key, []).append(number)
        roles = dict(_roles(walk))
        found = sorted(members, key=lambda key: -storages[key].bytes)
        items = [
            _item(walk, storages[key], members[key], roles, position < NAMED) for position, key in enumerate(found)
        ]
    return Inventory(tuple(items), walk.complete)


def _item(walk: Walk, storage: Storage, numbers: list[int], roles: dict[int, str], named: bool) -> Item:
    things = [walk.objects[number] for number in numbers]
    real = [thing for thing in things if tensor_type() in access.mro(type(thing))]
    base = tensor_type()
    shape, dtype = ((storage.bytes,), "storage")
    requires = False
    number = numbers[0]
    if real:
        largest = max(real, key=base.numel)  # type: ignore[attr-defined]
        number = next(one for one in numbers if walk.objects[one] is largest)
        shape = tuple(base.size(largest))  # type: ignore[attr-defined]
        dtype = str(largest.dtype).removeprefix("torch.")
        requires = any(one.requires_grad for one in real)
    name = holder = ""
    if named:
        chain = chain_of([walk.objects[one] for one in walk.way(number)])
        name, holder = chain.path, str(chain)
    role = next((roles[id(thing)] for thing in things if id(thing) in roles), "")
    return Item(name, holder, storage, weak_reference_of(things[0]), shape, dtype, len(things), requires, role)


def _roles(walk: Walk) -> Iterator[tuple[int, str]]:
    """What modules and optimizers that were reached have, by identity."""
    import torch

    optimizer, module = torch.optim.Optimizer, torch.nn.Module
    for gradient in walk.gradients:
        yield gradient, "gradient"
    for thing in walk.objects:
        bases = access.mro(type(thing))
        if module in bases:
            own = access.attributes(thing) or {}
            for kept, role in (("_buffers", "buffer"), ("_parameters", "parameter")):
                names = own.get(kept)
                for value in dict.values(names) if type(names) is dict else ():
                    if value is not None:
                        yield id(value), role
        elif optimizer in bases:
            state = (access.attributes(thing) or {}).get("state")
            for _, values in access.items(state) if dict in access.mro(type(state)) else ():
                for value in dict.values(values) if type(values) is dict else ():
                    yield id(value), "optimizer state"
