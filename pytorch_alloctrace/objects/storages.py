"""The memory of tensors: which share it, where it is, how large it is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import access

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
