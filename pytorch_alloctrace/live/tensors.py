"""`tensors()`: the live tensors of this process, with the line that allocated each if a recording runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..objects.inventory import Item, inventory
from ..reading.source_code import short_filename, working_directory_of
from ..recording.session import Session, current_session

if TYPE_CHECKING:
    import pandas as pd

SECONDS = 10.0
COLUMNS = ("name", "shape", "dtype", "device", "requested_bytes", "tensors", "requires_grad", "role")


def tensors(*, lines: bool = True, seconds: float = SECONDS) -> pd.DataFrame:
    """Return the live tensors, one row per storage, largest first.

    Args:
        lines: If a recording runs, add the line that allocated each storage. This reads the trace so far.
        seconds: Time limit of the search.

    Returns:
        A table with the columns name (as in `holders`), shape and dtype (of the largest tensor that shares the
        storage), device, requested_bytes, tensors (number that share the storage), requires_grad and role
        ("parameter", "buffer", "gradient", "optimizer state" or ""). With a recording also line ("train.py:31"), step
        and age (seconds), <NA> for storages that are not in the trace. `.attrs["complete"]` is False if the time ran
        out, or if gradients or graphs were passed over because other threads may have been changing them.
    """
    import pandas as pd

    storages = inventory(seconds)
    rows = [create_row(item) for item in storages.items]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    session = current_session() if lines else None
    if session is not None:
        origins = read_origins(session)
        item_origins = [origins.get(item.storage.address) for item in storages.items]
        table["line"] = pd.array([origin[0] if origin else pd.NA for origin in item_origins], dtype="string")
        table["step"] = pd.array([origin[1] if origin else pd.NA for origin in item_origins], dtype="Int64")
        table["age"] = pd.array([origin[2] if origin else pd.NA for origin in item_origins], dtype="Float64")
    table.attrs["complete"] = storages.complete
    return table


def create_row(item: Item) -> tuple[object, ...]:
    storage = item.storage
    return (
        item.name,
        item.shape,
        item.dtype,
        storage.device,
        storage.bytes,
        item.tensors,
        item.requires_grad,
        item.role,
    )


def read_origins(session: Session) -> dict[int, tuple[str, Any, float]]:
    """Return line, step and age in seconds of each live block of a recording, by address."""
    import pandas as pd

    trace = session.load()
    live, folder = trace.live(), working_directory_of(trace.header)
    now = time.time_ns()
    origins = {}
    for address, filename, line, step, allocated_at_ns in zip(
        live["address"], live["filename"], live["line"], live["step"], live["alloc_ns"], strict=True
    ):
        age = 0.0 if pd.isna(allocated_at_ns) else round((now - int(allocated_at_ns)) / 1e9, 3)
        if filename:
            origins[int(address)] = (f"{short_filename(filename, folder)}:{line}", step, age)
    return origins
