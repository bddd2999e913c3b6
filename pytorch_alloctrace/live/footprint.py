"""`footprint()`: what a model and its optimizer take, module by module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..objects.inventory import Storage, disable_torch_function, storage_of
from ..report import units

if TYPE_CHECKING:
    import pandas as pd
    import torch

BLOCK = 512
"""torch's CUDA allocator rounds sizes up to a multiple of it, unless it is set to round otherwise."""
_KINDS = ("parameter_bytes", "buffer_bytes", "gradient_bytes", "state_bytes")


@dataclass(frozen=True)
class Footprint:
    """What a model takes. `str` and a notebook show the table."""

    modules: pd.DataFrame
    """A row for each module that has tensors of its own: module (its name; "" is the model itself), type,
    parameter_bytes, buffer_bytes, gradient_bytes, state_bytes (of the optimizer), requested_bytes (their sum),
    allocated_bytes."""
    parameter_bytes: int
    """Requested bytes of all modules' parameters."""
    buffer_bytes: int
    """Requested bytes of all modules' buffers."""
    gradient_bytes: int
    """Requested bytes of all parameters' gradients."""
    state_bytes: int
    """Requested bytes of the optimizer's state."""
    requested_bytes: int
    """The sum of the four."""
    allocated_bytes: int
    """An estimate: on CUDA, each piece of memory rounded up to a multiple of 512 bytes, which is what torch's allocator
    does unless it is told to round otherwise; elsewhere what was requested."""

    def __str__(self) -> str:
        rows: list[dict[Any, Any]] = [*self.modules.to_dict("records"), {"module": "total", **self._totals()}]
        names = dict(zip(("parameters", "buffers", "gradients", "state"), _KINDS, strict=True))
        names |= {"allocated": "allocated_bytes"}
        width = max((len(str(row["module"])) for row in rows), default=5)
        head = f"{'module':<{width}}" + "".join(f"{name:>12}" for name in names)
        lines = [
            f"{row['module']!s:<{width}}" + "".join(f"{units.size(row[name]):>12}" for name in names.values())
            for row in rows
        ]
        return "\n".join([head, *lines, "allocated: estimated, by the default rounding of torch's allocator"])

    def _totals(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in (*_KINDS, "requested_bytes", "allocated_bytes")}

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def footprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Footprint:
    """What the parameters, buffers, gradients and, with an optimizer, its state take, by module.

    Memory that several share, such as tied weights, counts once, for the first. State of parameters that the model does
    not have, and state that belongs to none, is in the row "(optimizer)".
    """
    import pandas as pd

    counted: set[int] = set()
    rows = []
    with disable_torch_function():
        state = _state_by_parameter(optimizer)
        for name, module in model.named_modules():
            parameters = [one for one in module._parameters.values() if one is not None]
            of_optimizer = [value for one in parameters for value in state.pop(id(one), ())]
            groups = (
                parameters,
                [one for one in module._buffers.values() if one is not None],
                [one.grad for one in parameters if one.grad is not None],
                of_optimizer,
            )
            rows.append(_row(name, type(module).__name__, groups, counted))
        rest = [value for values in state.values() for value in values]
        if rest:
            rows.append(_row("(optimizer)", type(optimizer).__name__, ((), (), (), rest), counted))
    columns = ["module", "type", *_KINDS, "requested_bytes", "allocated_bytes"]
    table = pd.DataFrame([row for row in rows if row["requested_bytes"]], columns=columns)
    return Footprint(table, **{name: int(table[name].sum()) for name in columns[2:]})


def _row(name: str, kind: str, groups: tuple[Iterable[Any], ...], counted: set[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"module": name, "type": kind}
    allocated = 0
    for column, tensors in zip(_KINDS, groups, strict=True):
        row[column] = 0
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None and storage.key not in counted:
                counted.add(storage.key)
                row[column] += storage.bytes
                allocated += _allocated(storage)
    return {**row, "requested_bytes": sum(row[column] for column in _KINDS), "allocated_bytes": allocated}


def _allocated(storage: Storage) -> int:
    return -(-storage.bytes // BLOCK) * BLOCK if storage.device.startswith("cuda") else storage.bytes


def _state_by_parameter(optimizer: Any) -> dict[int, list[Any]]:
    if optimizer is None:
        return {}
    return {id(parameter): list(_tensors(values)) for parameter, values in optimizer.state.items()}


def _tensors(values: Any) -> Iterable[Any]:
    """The tensors in the state of one parameter, however deep."""
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)
