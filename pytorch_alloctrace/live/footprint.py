"""`footprint()`: the memory of a model and its optimizer by module."""

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
"""Default rounding of torch's CUDA allocator in bytes."""
_KINDS = ("parameter_bytes", "buffer_bytes", "gradient_bytes", "state_bytes")


@dataclass(frozen=True)
class Footprint:
    """The memory of a model. `str` and a notebook show the table."""

    modules: pd.DataFrame
    """One row for each module that has tensors of its own. Columns: module (name; "" is the model itself), type,
    parameter_bytes, buffer_bytes, gradient_bytes, state_bytes (of the optimizer), requested_bytes (their sum) and
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
    """Sum of the parameters, buffers, gradients and state."""
    allocated_bytes: int
    """Estimate of the allocated bytes. On CUDA each storage is rounded up to a multiple of 512 bytes, the default of
    torch's allocator. Elsewhere it equals the requested bytes."""

    def __str__(self) -> str:
        rows: list[dict[Any, Any]] = [*self.modules.to_dict("records"), {"module": "total", **self._totals()}]
        columns_by_title = dict(zip(("parameters", "buffers", "gradients", "state"), _KINDS, strict=True))
        columns_by_title |= {"allocated": "allocated_bytes"}
        width = max((len(str(row["module"])) for row in rows), default=5)
        header = f"{'module':<{width}}" + "".join(f"{name:>12}" for name in columns_by_title)
        lines = [
            f"{row['module']!s:<{width}}"
            + "".join(f"{units.size(row[name]):>12}" for name in columns_by_title.values())
            for row in rows
        ]
        return "\n".join([header, *lines, "allocated: estimated, by the default rounding of torch's allocator"])

    def _totals(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in (*_KINDS, "requested_bytes", "allocated_bytes")}

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def footprint(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Footprint:
    """Measure the parameters, buffers, gradients and optimizer state of a model by module.

    Shared memory, such as tied weights, counts once, for the first module. The row "(optimizer)" contains the state of
    parameters that are not in the model, and state that belongs to no parameter.

    Args:
        model: The model.
        optimizer: The optimizer whose state is included. Default: none.

    Returns:
        Requested bytes by module and kind, and an estimate of the allocated bytes.
    """
    import pandas as pd

    counted_keys: set[int] = set()
    rows = []
    with disable_torch_function():
        state = _collect_state(optimizer)
        for name, module in model.named_modules():
            parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
            optimizer_state = [value for parameter in parameters for value in state.pop(id(parameter), ())]
            groups = (
                parameters,
                [buffer for buffer in module._buffers.values() if buffer is not None],
                [parameter.grad for parameter in parameters if parameter.grad is not None],
                optimizer_state,
            )
            rows.append(_create_row(name, type(module).__name__, groups, counted_keys))
        remaining_state = [value for values in state.values() for value in values]
        if remaining_state:
            rows.append(
                _create_row("(optimizer)", type(optimizer).__name__, ((), (), (), remaining_state), counted_keys)
            )
    columns = ["module", "type", *_KINDS, "requested_bytes", "allocated_bytes"]
    table = pd.DataFrame([row for row in rows if row["requested_bytes"]], columns=columns)
    return Footprint(table, **{name: int(table[name].sum()) for name in columns[2:]})


def _create_row(name: str, kind: str, groups: tuple[Iterable[Any], ...], counted_keys: set[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"module": name, "type": kind}
    allocated = 0
    for column, tensors in zip(_KINDS, groups, strict=True):
        row[column] = 0
        for tensor in tensors:
            storage = storage_of(tensor)
            if storage is not None and storage.key not in counted_keys:
                counted_keys.add(storage.key)
                row[column] += storage.bytes
                allocated += _allocated(storage)
    return {**row, "requested_bytes": sum(row[column] for column in _KINDS), "allocated_bytes": allocated}


def _allocated(storage: Storage) -> int:
    return -(-storage.bytes // BLOCK) * BLOCK if storage.device.startswith("cuda") else storage.bytes


def _collect_state(optimizer: Any) -> dict[int, list[Any]]:
    if optimizer is None:
        return {}
    return {id(parameter): list(_iterate_nested_tensors(values)) for parameter, values in optimizer.state.items()}


def _iterate_nested_tensors(values: Any) -> Iterable[Any]:
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _iterate_nested_tensors(value)
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _iterate_nested_tensors(value)
