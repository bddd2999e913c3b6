"""The storages of all tensors: address, size, and the tensors that share each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import access
from .chains import chain_of
from .graphs import load_reader
from .walk import Walk, Walker

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef

TENSORS_PER_CHECK = 256
"""Number of tensors that are read between two checks of a deadline."""


class Storage(NamedTuple):  # created and hashed in half the time of a dataclass: a scan creates thousands
    key: int
    """Identity of torch's storage object. A later storage may get the key of a freed one."""
    address: int
    bytes: int
    device: str
    is_foreign: bool = False
    """True for memory that no allocator of torch provided: from numpy, a file, shared memory or another process."""

    def is_shared_by(self, tensor: Any) -> bool:
        """Return whether a tensor has the same memory, by address for tensors that wrap the same numpy array."""
        other = storage_of(tensor)
        return other is not None and (other.key == self.key or 0 != other.address == self.address)


def storage_of(tensor: Any) -> Storage | None:
    """Return the storage of a tensor or storage object; None for meta, sparse and wrapped tensors.

    None also for a tensor that is copied at its first write (`_lazy_clone`): reading its address would copy it. Runs no
    code of the program.
    """
    import torch

    try:
        if access.is_a(tensor, torch._C.StorageBase):
            storage = tensor
        else:
            if torch._C._is_cow_tensor(tensor):
                return None
            storage = torch._C.TensorBase.untyped_storage(tensor)
        device = storage.device
        if device.type not in ("cpu", "cuda"):
            return None
        base = torch._C.StorageBase
        is_foreign = not base.resizable(storage) or (device.type == "cpu" and base.is_shared(storage))
        return Storage(storage._cdata, storage.data_ptr(), storage.nbytes(), str(device), is_foreign)
    except (RuntimeError, AttributeError, TypeError) as error:  # torch: the tensor has no memory of its own
        if not access.raised_here(error):
            raise
        return None


def bytes_of(tensor: Any, storage: Storage) -> int:
    """Return the bytes of a tensor's elements, which may be a part of its storage. Runs no code of the program.

    Of other objects, those of the storage: a subclass of Tensor may compute its size in `__torch_dispatch__`.
    """
    import torch

    if not access.has_exact_type(tensor, (torch.Tensor, torch.nn.Parameter)):
        return storage.bytes
    base = torch._C.TensorBase
    return int(base.numel(tensor) * base.element_size(tensor))


def weak_reference_of(tensor: Any) -> StorageWeakRef:
    """Return a weak reference that reserves `Storage.key`: no other storage gets the key while the reference exists.

    It keeps torch's record of the storage alive (about 100 bytes), not the memory.
    """
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    if access.is_a(tensor, torch._C.StorageBase):
        return StorageWeakRef(tensor)
    return StorageWeakRef(torch._C.TensorBase.untyped_storage(tensor))


def tensor_type() -> type:
    import torch

    base: type = torch._C.TensorBase
    return base


def disable_torch_function() -> AbstractContextManager[Any]:
    """Return a context in which `__torch_function__` of the program's tensors does not run on this thread."""
    import torch

    context: AbstractContextManager[Any] = torch._C.DisableTorchFunctionSubclass()
    return context


MAX_OBJECTS = 30_000_000
MAX_NAMED = 20_000
"""Number of storages, the largest, that get a name."""


@dataclass(frozen=True)
class Item:
    name: str
    """Referrer path as in `holders`: `trainer.predictions[12]`."""
    holder: str
    """Holder as in `Chain.__str__`."""
    storage: Storage
    reference: StorageWeakRef
    shape: tuple[int, ...]
    """Shape of the largest tensor."""
    dtype: str
    tensors: int
    requires_grad: bool
    role: str


@dataclass(frozen=True)
class Inventory:
    """All storages, the largest first."""

    items: tuple[Item, ...]
    complete: bool


def inventory(seconds: float) -> Inventory:
    """Collect the storages of all tensors within about `seconds` seconds.

    A tensor that is only in an autograd graph has the name of the object that leads to the graph.
    """
    load_reader()
    with disable_torch_function():
        walk = Walker().walk(seconds, MAX_OBJECTS)
        members: dict[int, list[int]] = {}
        storages: dict[int, Storage] = {}
        for number in walk.tensors:
            storage = storage_of(walk.objects[number])
            if storage is not None and storage.bytes:
                storages.setdefault(storage.key, storage)
                members.setdefault(storage.key, []).append(number)
        roles = dict(_find_roles(walk))
        keys_by_size = sorted(members, key=lambda key: -storages[key].bytes)
        items = [
            _create_item(walk, storages[key], members[key], roles, position < MAX_NAMED)
            for position, key in enumerate(keys_by_size)
        ]
    return Inventory(tuple(items), walk.complete)


def _create_item(walk: Walk, storage: Storage, numbers: list[int], roles: dict[int, str], with_name: bool) -> Item:
    sharers = [walk.objects[number] for number in numbers]
    tensors = [obj for obj in sharers if access.is_a(obj, tensor_type())]
    base = tensor_type()
    shape, dtype = ((storage.bytes,), "storage")
    requires_grad = False
    number = numbers[0]
    if tensors:
        largest = max(tensors, key=base.numel)  # type: ignore[attr-defined]
        number = next(candidate for candidate in numbers if walk.objects[candidate] is largest)
        shape = tuple(base.size(largest))  # type: ignore[attr-defined]
        dtype = str(base.dtype.__get__(largest)).removeprefix("torch.")  # type: ignore[attr-defined]
        requires_grad = any(base.requires_grad.__get__(tensor) for tensor in tensors)  # type: ignore[attr-defined]
    name = holder = ""
    if with_name:
        chain = chain_of([walk.objects[step] for step in walk.short_path_to(number)], reads_containers=False)
        name, holder = chain.path, str(chain)
    role = next((roles[id(obj)] for obj in sharers if id(obj) in roles), "")
    return Item(name, holder, storage, weak_reference_of(sharers[0]), shape, dtype, len(sharers), requires_grad, role)


def _find_roles(walk: Walk) -> Iterator[tuple[int, str]]:
    """Yield `id` and role of the tensors in the visited modules and optimizers, and of gradients."""
    import torch

    optimizer, module = torch.optim.Optimizer, torch.nn.Module
    for gradient in walk.gradients:
        yield gradient, "gradient"
    for obj in walk.objects:
        if access.is_a(obj, module):
            attributes = access.attributes(obj) or {}
            for attribute_name, role in (("_buffers", "buffer"), ("_parameters", "parameter")):
                tensors_by_name = attributes.get(attribute_name)
                for value in dict.values(tensors_by_name) if type(tensors_by_name) is dict else ():
                    if value is not None:
                        yield id(value), role
        elif access.is_a(obj, optimizer):
            state = (access.attributes(obj) or {}).get("state")
            for _, values in access.items(state) if access.is_a(state, dict) else ():
                for value in dict.values(values) if type(values) is dict else ():
                    yield id(value), "optimizer state"


def select_instances(objects: list[Any], base: type) -> Iterator[Any]:
    """Yield the instances of a class of torch. Fast: most objects are skipped without Python code."""
    return itertools.compress(objects, map(issubclass, map(type, objects), itertools.repeat(base)))
