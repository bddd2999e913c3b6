"""`tensors()`: the tensors that are alive in this process, with the line that made each where a recording runs."""

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
    """The tensors that are alive, the largest first: a row for each piece of memory, whoever shares it.

    lines: where a recording runs, say where each was made, which reads the trace so far. seconds: after which the
    search gives up. `.attrs["complete"]` of the table is False then, and if gradients or graphs were passed over
    because other threads may have been changing them.

    Columns: name (as in `holders`), shape and dtype of the largest tensor in it, device, requested_bytes, tensors
    (how many share it), requires_grad, role ("parameter", "buffer", "gradient", "optimizer state", or ""); with a
    recording also line (that made it: "train.py:31"), step (in which) and age (seconds); <NA> for what is not in the
    trace.
    """
    import pandas as pd

    found = inventory(seconds)
    rows = [row_of(item) for item in found.items]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    session = current_session() if lines else None
    if session is not None:
        origins = origins_of(session)
        made = [origins.get(item.storage.address) for item in found.items]
        table["line"] = pd.array([one[0] if one else pd.NA for one in made], dtype="string")
        table["step"] = pd.array([one[1] if one else pd.NA for one in made], dtype="Int64")
        table["age"] = pd.array([one[2] if one else pd.NA for one in made], dtype="Float64")
    table.attrs["complete"] = found.complete
    return table


def row_of(item: Item) -> tuple[object, ...]:
    """What `COLUMNS` say of one piece of memory."""
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


def origins_of(session: Session) -> dict[int, tuple[str, Any, float]]:
    """Of each block that is live now in a recording, by address: its line, step and age."""
    import pandas as pd

    trace = session.load()
    live, folder = trace.live(), working_directory_of(trace.header)
    now = time.time_ns()
    found = {}
    for address, filename, line, step, birth in zip(
        live["address"], live["filename"], live["line"], live["step"], live["alloc_ns"], strict=True
    ):
        age = 0.0 if pd.isna(birth) else round((now - int(birth)) / 1e9, 3)
        if filename:
            found[int(address)] = (f"{short_filename(filename, folder)}:{line}", step, age)
    return found
