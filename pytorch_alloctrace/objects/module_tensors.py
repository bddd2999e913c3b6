"""Tensors of torch modules and their optimizers, with the names that the program gave them."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from . import access
from .inventory import TENSORS_PER_CHECK, Storage, select_instances, tensor_type, weak_reference_of
from .walk import Walk

if TYPE_CHECKING:
    from torch.multiprocessing.reductions import StorageWeakRef


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


def find_module_tensors(walk: Walk, storages: dict[int, Storage], deadline: float) -> Iterator[ModuleTensor]:
    """Yield the parameters and buffers of the modules in the walk, and until a deadline the state of their optimizers.

    Reads only the attributes of modules and optimizers.
    """
    import torch

    modules = select_instances(walk.objects, torch.nn.Module)
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

    for optimizer in select_instances(walk.objects, torch.optim.Optimizer):
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
