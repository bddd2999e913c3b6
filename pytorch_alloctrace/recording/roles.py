"""Notes in the trace about the role of blocks: parameters, buffers, gradients, optimizer state.

A note names a block by the address of the tensor's storage, so notes are exact. Blocks are looked up before the first
step of a torch optimizer, which may run out of memory when it creates the state; and after it has stepped: at its 1st,
2nd, 4th, 8th, ... step, and whenever the number of its parameters or states changes. Object scans note the parameters
and buffers of all modules (object_scans.py).
Those of models passed to `observe` are also looked up at `enable`, at `step` (again the 1st, 2nd, 4th, ...) and when
the recording ends. These blocks live long, so the notes miss only gradients that are allocated anew in each step: the
analysis gives them the role of their siblings.

The program is not disturbed: unreadable tensors are left out, nothing is kept alive, and no operator runs on a device.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..objects.own_errors import is_from_signal_handler
from .steps import listen_to_steps

PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE = 1, 2, 3, 4
"""Numbers of the roles in the trace format: `Role` in csrc/core/format/event.h."""

Note = tuple[int, int, int, int, str, int]
"""Address, device type, device index, role, name ("" if the tensor has none), identifier of its module (0: unknown)."""

DEVICE_TYPES = {"cpu": 0, "cuda": 1}
_MAX_DEPTH = 4
"""Maximum nesting of lists and dicts in an optimizer's state, and of tensors made of tensors."""

_observed: list[weakref.ref[Any]] = []
"""Models and optimizers that the program passed to `observe`."""


def add_observed(*subjects: Any) -> None:
    observed = [reference() for reference in _observed]
    for subject in subjects:
        if not any(subject is other for other in observed):
            _observed.append(weakref.ref(subject, _observed.remove))


class RoleNotes:
    def __init__(self, push: Callable[[list[Note]], None]) -> None:
        self._push = push
        self._handles: list[Any] = []
        self._steps = 0
        self._optimizers: dict[int, _SteppedOptimizer] = {}

    def start(self) -> None:
        def guard(note: Callable[[object], None]) -> Callable[[object], None]:
            def call(optimizer: object) -> None:
                try:
                    note(optimizer)
                except Exception as error:
                    if is_from_signal_handler(error):
                        raise

            return call

        self._handles = [listen_to_steps(guard(self._before_step), before=True)]
        self._handles.append(listen_to_steps(guard(self._after_step)))

    def stop(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def push_notes(self, *optimizers: Any) -> None:
        """Push notes about the blocks of these optimizers and of all observed objects."""
        try:
            observed = [subject for subject in (reference() for reference in tuple(_observed)) if subject is not None]
            if observed or optimizers:
                self._push(list(_notes([*observed, *optimizers])))
        except Exception as error:
            if is_from_signal_handler(error):
                raise

    def count_step(self) -> None:
        """Count a step that the program has ended, and look up observed blocks if it is due."""
        if _observed:
            self._steps += 1
            if _is_due(self._steps):
                self.push_notes()

    def _before_step(self, optimizer: Any) -> None:
        if self._find(optimizer) is None:
            self._optimizers[id(optimizer)] = _SteppedOptimizer(optimizer, self._optimizers)
            self.push_notes(optimizer)

    def _after_step(self, optimizer: Any) -> None:
        stepped = self._find(optimizer)
        if stepped is None:
            stepped = self._optimizers[id(optimizer)] = _SteppedOptimizer(optimizer, self._optimizers)
        stepped.steps += 1
        size = (*(len(group["params"]) for group in optimizer.param_groups), len(optimizer.state))
        if _is_due(stepped.steps) or size != stepped.size:
            stepped.size = size
            self.push_notes(optimizer)

    def _find(self, optimizer: Any) -> _SteppedOptimizer | None:
        stepped = self._optimizers.get(id(optimizer))
        return stepped if stepped is not None and stepped.optimizer() is optimizer else None


class _SteppedOptimizer:
    """Optimizer with its number of steps. `size`: its numbers of parameters and states at the last look-up."""

    def __init__(self, optimizer: Any, registry: dict[int, _SteppedOptimizer]) -> None:
        key = id(optimizer)
        self.optimizer = weakref.ref(optimizer, lambda _: registry.pop(key, None))
        self.steps = 0
        self.size: tuple[int, ...] = ()


def _is_due(count: int) -> bool:
    return count & (count - 1) == 0


def _notes(subjects: list[Any]) -> Iterator[Note]:
    """Yield a note for each block of these models and optimizers.

    A block with several roles gets the first of: parameter, buffer, gradient, optimizer state.
    """
    import torch

    models = [subject for subject in subjects if hasattr(subject, "named_parameters")]
    optimizers = [subject for subject in subjects if hasattr(subject, "param_groups")]
    # Without this, reading an attribute of a Tensor subclass would run the program's code.
    with torch._C.DisableTorchFunctionSubclass():
        parameters: dict[int, tuple[Any, str]] = {}
        for model in models:
            for name, parameter in model.named_parameters():
                parameters.setdefault(id(parameter), (parameter, name))
        for optimizer in optimizers:
            for name, parameter in _grouped_parameters(optimizer):
                parameters.setdefault(id(parameter), (parameter, name))
        buffers = [named for model in models for named in model.named_buffers()]
        lookup = _BlockLookup(torch)
        noted_blocks: set[tuple[int, int, int]] = set()
        for role, tensors in (
            (PARAMETER, ((name, parameter) for parameter, name in parameters.values())),
            (BUFFER, buffers),
            (GRADIENT, _gradients(parameters.values())),
            (
                OPTIMIZER_STATE,
                (named for optimizer in optimizers for named in _optimizer_states(optimizer, parameters)),
            ),
        ):
            for name, tensor in tensors:
                for block in lookup.blocks(tensor):
                    if block not in noted_blocks:
                        noted_blocks.add(block)
                        yield (*block, role, name, 0)


def _grouped_parameters(optimizer: Any) -> Iterator[tuple[str, Any]]:
    for group in optimizer.param_groups:
        names = group.get("param_names") or ()  # set if the optimizer was created from named_parameters()
        for index, parameter in enumerate(group["params"]):
            yield (str(names[index]) if index < len(names) else ""), parameter


def _gradients(parameters: Iterable[tuple[Any, str]]) -> Iterator[tuple[str, Any]]:
    # Not GraphReader: it reads no gradient while any other thread runs backward, even of another model. The program's
    # own steps read .grad too.
    for parameter, name in parameters:
        # torch warns when .grad of any other tensor is read.
        if parameter.is_leaf or parameter.retains_grad:
            gradient = parameter.grad
            if gradient is not None:
                yield _join_name(name, "grad"), gradient


def _optimizer_states(optimizer: Any, parameters: dict[int, tuple[Any, str]]) -> Iterator[tuple[str, Any]]:
    for key, state in optimizer.state.items():
        yield from _nested_tensors(state, parameters[id(key)][1] if id(key) in parameters else "", 0)


def _nested_tensors(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < _MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _nested_tensors(item, _join_name(name, str(key)), depth + 1)


def _join_name(name: str, part: str) -> str:
    return f"{name}.{part}" if name else ""


class _BlockLookup:
    def __init__(self, torch: Any) -> None:
        self._strided = torch.strided
        self._layouts = {
            torch.sparse_coo: ("_indices", "_values"),
            torch.sparse_csr: ("crow_indices", "col_indices", "values"),
            torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
            torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
            torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
        }
        fake = sys.modules.get("torch._subclasses.fake_tensor")
        self._fake_type = fake.FakeTensor if fake is not None else ()
        # Reading the address of a copy-on-write tensor would copy the tensor.
        self._is_shared_lazily = getattr(torch._C, "_is_cow_tensor", lambda tensor: False)

    def blocks(self, tensor: Any, depth: int = 0) -> list[tuple[int, int, int]]:
        """Return address, device type and index of each block of a tensor; none if torch has no memory for it."""
        try:
            parts = self._parts(tensor)
            if parts is not None:
                return [block for part in parts if depth < _MAX_DEPTH for block in self.blocks(part, depth + 1)]
            device = tensor.device
            kind = DEVICE_TYPES.get(device.type)
            if kind is None or self._is_shared_lazily(tensor):
                return []
            # Not the tensor's own address: a view may begin anywhere in the storage.
            address = tensor.untyped_storage().data_ptr()
            return [(address, kind, device.index or 0)] if address else []
        except Exception as error:  # functional tensors, for instance
            if is_from_signal_handler(error):
                raise
            return []

    def _parts(self, tensor: Any) -> list[Any] | None:
        """Return the tensors that a tensor consists of, or None if it has memory of its own."""
        if isinstance(tensor, self._fake_type):
            return []
        if hasattr(type(tensor), "__tensor_flatten__"):  # DTensor, quantized ones, jagged ones
            return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        layout = tensor.layout
        if layout is self._strided:
            return None
        return [getattr(tensor, name)() for name in self._layouts.get(layout, ())]
