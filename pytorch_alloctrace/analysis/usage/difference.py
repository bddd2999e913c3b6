"""How the live memory changed between two moments of one trace."""

from __future__ import annotations

import pandas as pd

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from .composition import composition_at

CHANGE_COLUMNS = ("bytes_before", "bytes_after", "change", "blocks_before", "blocks_after")
_HELD = ("bytes", "blocks")


def difference(
    trace: RecordedTrace, a: Position, b: Position, *, device: str | None = None, by: str = "line"
) -> pd.DataFrame:
    """See `Trace.diff`."""
    before, after = (composition_at(trace, moment, device=device, by=by) for moment in (a, b))
    names = [name for name in before.columns if name not in ("share", "largest", "backward_bytes", *_HELD)]
    return changes(before, after, key_of(by), names)


def key_of(by: str) -> str:
    """The column of a composition that tells its rows apart."""
    # What a place is called is its own within one trace; of several stacks of one line the number tells.
    return {"stack": "stack_id", "age": "age", "phase": "phase"}.get(by, "site")


def changes(before: pd.DataFrame, after: pd.DataFrame, key: str, names: list[str]) -> pd.DataFrame:
    """Two compositions whose rows are the same where `key` is, as one table, the largest change in either direction
    first. names: its columns beside CHANGE_COLUMNS, as `after` has them, where it has the row."""
    named = pd.concat([after[names], before[names]]).drop_duplicates(key).set_index(key, drop=False)
    held = {
        f"{name}_{when}": table.groupby(key)[name].sum().reindex(named.index, fill_value=0).astype("int64")
        for when, table in (("before", before), ("after", after))
        for name in _HELD
    }
    table = named.assign(**held, change=held["bytes_after"] - held["bytes_before"])
    order = (-table["change"].abs()).argsort(kind="stable")
    return table.iloc[order].reset_index(drop=True)[[*names, *CHANGE_COLUMNS]]
