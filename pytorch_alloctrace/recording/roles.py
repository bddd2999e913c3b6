"""Tells the trace what blocks are for: parameters, buffers, gradients, the state of optimizers.

A block is named by its address, which is that of the tensor's storage, so what is said is exact. It is looked up where
a torch optimizer has stepped: at its 1st, 2nd, 4th, 8th, ... step, and whenever its parameters or its state became more
or fewer; and for models that the program shows to `observe`, also at `enable`, at `step` (again the 1st, 2nd, 4th, ...)
and when the recording ends. Blocks live long, so that is enough for all but gradients that are made anew in each step:
the analysis takes those for what their siblings are.

Nothing here may disturb the program: whatever cannot be read is left out, nothing is kept alive, no operator is called
on a device.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .own_errors import is_from_signal_handler
from .steps import listen_to_steps

PARAMETER, BUFFER, GRADIENT, OPTIMIZER_STATE = 1, 2, 3, 4
"""Numbers of the trace format: `Role` in csrc/core/format/event.h."""

Note = tuple[int, int, int, int, str]
"""Address, device type, device index, role, name ("" if it has none)."""

_DEVICE_TYPES = {"cpu": 0, "cuda": 1}
_DEEPEST = 4
"""Levels of lists and dicts in the state of an optimizer, and of tensors made of tensors, that are looked into."""

_observed: list[weakref.ref[Any]] = []
"""What the program showed to `observe`: models and optimizers."""


def remember(*things: Any) -> None:
    """Adds models and optimizers to those that are looked up, as long as they live."""
    known = [reference() for reference in _observed]
    for thing in things:
        if not any(thing is one for one in known):
            _observed.append(weakref.ref(thing, _observed.remove))


class RoleNotes:
    """Hands what blocks are for to `push`, between `start` and `stop`."""

    def __init__(self, push: Callable[[list[Note]], None]) -> None:
        self._push = push
        self._handle: Any = None
        self._steps = 0
        self._optimizers: dict[int, _Stepped] = {}

    def start(self) -> None:
        """Starts listening to every torch optimizer, including those that exist already."""

        def after_step(optimizer: object) -> None:
            try:
                self._after_step(optimizer)
            except Exception as error:
                if is_from_signal_handler(error):
                    raise

        self._handle = listen_to_steps(after_step)

    def stop(self) -> None:
        """Stops listening; may be called more than once."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def look(self, *optimizers: Any) -> None:
        """Looks up these optimizers and all that is observed."""
        try:
            observed = [thing for thing in (reference() for reference in tuple(_observed)) if thing is not None]
            if observed or optimizers:
                self._push(list(_notes([*observed, *optimizers])))
        except Exception as error:
            if is_from_signal_handler(error):
                raise

    def stepped(self) -> None:
        """The program has ended a step."""
        if _observed:
            self._steps += 1
            if _is_due(self._steps):
                self.look()

    def _after_step(self, optimizer: Any) -> None:
        known = self._optimizers.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = self._optimizers[id(optimizer)] = _Stepped(optimizer, self._optimizers)
        known.steps += 1
        size = (*(len(group["params"]) for group in optimizer.param_groups), len(optimizer.state))
        if _is_due(known.steps) or size != known.size:
            known.size = size
            self.look(optimizer)


class _Stepped:
    """An optimizer that has stepped: how often, and how many parameters and states it had when it was looked up."""

    def __init__(self, optimizer: Any, among: dict[int, _Stepped]) -> None:
        key = id(optimizer)
        self.optimizer = weakref.ref(optimizer, lambda _: among.pop(key, None))
        self.steps = 0
        self.size: tuple[int, ...] = ()


def _is_due(count: int) -> bool:
    return count & (count - 1) == 0


def _notes(things: list[Any]) -> Iterator[Note]:
    """A note for each block of these models and optimizers; of a block that is several things, what it is first: a
    parameter, else a buffer, else a gradient, else a state."""
    import torch

    models = [thing for thing in things if hasattr(thing, "named_parameters")]
    optimizers = [thing for thing in things if hasattr(thing, "param_groups")]
    # What a subclass of Tensor makes of an attribute is the program's code.
    with torch._C.DisableTorchFunctionSubclass():
        parameters: dict[int, tuple[Any, str]] = {}
        for model in models:
            for name, parameter in model.named_parameters():
                parameters.setdefault(id(parameter), (parameter, name))
        for optimizer in optimizers:
            for name, parameter in _of_groups(optimizer):
                parameters.setdefault(id(parameter), (parameter, name))
        buffers = [named for model in models for named in model.named_buffers()]
        lookup = _Lookup(torch)
        seen: set[tuple[int, int, int]] = set()
        for role, tensors in (
            (PARAMETER, ((name, parameter) for parameter, name in parameters.values())),
            (BUFFER, buffers),
            (GRADIENT, _gradients(parameters.values())),
            (OPTIMIZER_STATE, (named for one in optimizers for named in _states(one, parameters))),
        ):
            for name, tensor in tensors:
                for block in lookup.blocks(tensor):
                    if block not in seen:
                        seen.add(block)
                        yield (*block, role, name)


def _of_groups(optimizer: Any) -> Iterator[tuple[str, Any]]:
    for group in optimizer.param_groups:
        names = group.get("param_names") or ()  # of an optimizer that was given named_parameters()
        for index, parameter in enumerate(group["params"]):
            yield (str(names[index]) if index < len(names) else ""), parameter


def _gradients(parameters: Iterable[tuple[Any, str]]) -> Iterator[tuple[str, Any]]:
    # As the program itself reads them in a step: its other threads may train other models meanwhile.
    for parameter, name in parameters:
        # Of others torch warns.
        if parameter.is_leaf or parameter.retains_grad:
            gradient = parameter.grad
            if gradient is not None:
                yield _dotted(name, "grad"), gradient


def _states(optimizer: Any, parameters: dict[int, tuple[Any, str]]) -> Iterator[tuple[str, Any]]:
    for key, state in optimizer.state.items():
        yield from _tensors(state, parameters[id(key)][1] if id(key) in parameters else "", 0)


def _tensors(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < _DEEPEST and isinstance(value, (dict, list, tuple)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(one, _dotted(name, str(key)), depth + 1)


def _dotted(name: str, part: str) -> str:
    return f"{name}.{part}" if name else ""


class _Lookup:
    """Finds the blocks of tensors."""

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
        self._fake = fake.FakeTensor if fake is not None else ()
        # Whether asking for a tensor's address would copy it.
        self._is_shared_lazily = getattr(torch._C, "_is_cow_tensor", lambda tensor: False)

    def blocks(self, tensor: Any, depth: int = 0) -> list[tuple[int, int, int]]:
        """Address, device type and index of each block that a tensor lies in; none if torch has no memory for it."""
        try:
            parts = self._parts(tensor)
            if parts is not None:
                return [block for part in parts if depth < _DEEPEST for block in self.blocks(part, depth + 1)]
            device = tensor.device
            kind = _DEVICE_TYPES.get(device.type)
            if kind is None or self._is_shared_lazily(tensor):
                return []
            # The storage's address, not the tensor's: a view may begin anywhere in it.
            address = tensor.untyped_storage().data_ptr()
            return [(address, kind, device.index or 0)] if address else []
        except Exception as error:  # functional tensors, for instance
            if is_from_signal_handler(error):
                raise
            return []

    def _parts(self, tensor: Any) -> list[Any] | None:
        """The tensors that a tensor is made of; None: it has memory of its own."""
        if isinstance(tensor, self._fake):
            return []
        if hasattr(type(tensor), "__tensor_flatten__"):  # DTensor, quantized ones, jagged ones
            return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        layout = tensor.layout
        if layout is self._strided:
            return None
        return [getattr(tensor, name)() for name in self._layouts.get(layout, ())]
