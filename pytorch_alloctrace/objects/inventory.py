"""The memory of tensors: which share it, where it is, how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import access
from .chains import chain_of
from .graphs import load_reader
from .walk import Walk, Walker

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef


@dataclass(frozen=True)
class Storage:
    """The memory of one or several tensors."""

    key: int
    """The same for all that share it; once it is gone, another may get it."""
    address: int
    """As torch's allocator gave it out."""
    bytes: int
    """Requested of the allocator."""
    device: str
    """As torch writes it: "cuda:0", "cpu"."""

    def is_shared_by(self, tensor: Any) -> bool:
        """Whether another tensor has the same memory: also where both only wrap it, such as a numpy array's."""
        other = storage_of(tensor)
        return other is not None and (other.key == self.key or 0 != other.address == self.address)


def storage_of(tensor: Any) -> Storage | None:
    """Of a tensor or storage; None for what has no memory of its own: meta, sparse and wrapped tensors.

    Copies nothing and runs nothing: not even a tensor that is only copied when it is written to (`_lazy_clone`).
    """
    import torch

    try:
        if torch._C.StorageBase in type(tensor).__mro__:
            storage = tensor
        else:
            if torch._C._is_cow_tensor(tensor):
                return None
            storage = torch._C.TensorBase.untyped_storage(tensor)
        device = storage.device
        if device.type not in ("cpu", "cuda"):
            return None
        return Storage(storage._cdata, storage.data_ptr(), storage.nbytes(), str(device))
    except (RuntimeError, AttributeError, TypeError) as error:  # torch raises them for what has no memory of its own
        if not access.raised_here(error):
            raise
        return None


def weak_reference_of(tensor: Any) -> StorageWeakRef:
    """To the storage of a tensor that has one, or to a storage: as long as it is kept, no other gets the same `key`.

    It keeps torch's record of the storage (some 100 bytes), not the memory.
    """
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    if torch._C.StorageBase in type(tensor).__mro__:
        return StorageWeakRef(tensor)
    return StorageWeakRef(torch._C.TensorBase.untyped_storage(tensor))


def tensor_type() -> type:
    """The class of all tensors."""
    import torch

    found: type = torch._C.TensorBase
    return found


def disable_torch_function() -> AbstractContextManager[Any]:
    """While it lasts, `__torch_function__` of the program's tensors is not called on this thread."""
    import torch

    found: AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return found


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
