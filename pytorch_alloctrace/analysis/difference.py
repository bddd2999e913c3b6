"""How the live memory changed between two moments of one trace."""

from __future__ import annotations

import pandas as pd

from ..positions import Moment
from ..trace import Trace
from .composition import composition_at

CHANGE_COLUMNS = ("bytes_before", "bytes_after", "change", "blocks_before", "blocks_after")
_HELD = ("bytes", "blocks")


def difference(trace: Trace, a: Moment, b: Moment, by: str, device: str | None) -> pd.DataFrame:
    """See `Trace.diff`."""
    before, after = (composition_at(trace, moment, by, device) for moment in (a, b))
    # What a place is called is its own within one trace; of several stacks of one line the number tells.
    key = "stack" if by == "stack" else by if by in ("age", "phase") else "site"
    names = [name for name in before.columns if name not in ("share", "largest", "backward_bytes", *_HELD)]
    named = pd.concat([after[names], before[names]]).drop_duplicates(key).set_index(key, drop=False)
    held = {
        f"{name}_{when}": table.set_index(key)[name].reindex(named.index).fillna(0).astype("int64")
        for when, table in (("before", before), ("after", after))
        for name in _HELD
    }
    return by_change(named.assign(**held))[[*names, *CHANGE_COLUMNS]]


def by_change(table: pd.DataFrame) -> pd.DataFrame:
    """With the column `change` (bytes_after - bytes_before), the largest change in either direction first."""
    changed = table.assign(change=table["bytes_after"] - table["bytes_before"])
    order = (-changed["change"].abs()).argsort(kind="stable")
    return changed.iloc[order].reset_index(drop=True)
