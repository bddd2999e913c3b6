"""What each stack holds at each moment, as runs: a row says that a stack holds so much from one moment to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading.recorded import RecordedTrace
from .bounds import Bounds
from .columns import Columns
from .names import PageStacks, fewer_stacks

_VALUES = ["bytes", "blocks", "backward_bytes"]


@dataclass(frozen=True)
class Holdings:
    """What the stacks of a device hold."""

    table: pd.DataFrame
    """moment, stack_id, bytes, blocks, backward_bytes: a row for each stack that holds something."""
    shown_under: dict[int, int]
    """The stack under which each is shown; -1: under none of its own."""

    def blocks_at(self, moments: int) -> npt.NDArray[np.int64]:
        """How many blocks are live at each moment."""
        return np.bincount(self.table["moment"], weights=self.table["blocks"], minlength=moments).astype(np.int64)


def holdings_of(trace: RecordedTrace, device: str, seqs: Sequence[int], bounds: Bounds) -> Holdings:
    """What the stacks of a device hold after these events."""
    tables = []
    for moment, seq in enumerate(seqs):
        totals = trace.stack_totals(seq, device=device)
        held = totals.take(totals["live_blocks"] > 0)
        tables.append(
            pd.DataFrame(
                {
                    "moment": moment,
                    "stack_id": held["stack_id"],
                    "bytes": held["live_bytes"],
                    "blocks": held["live_blocks"],
                    "backward_bytes": held["live_backward_bytes"],
                }
            )
        )
    table = pd.concat(tables, ignore_index=True)
    most = table.groupby("stack_id")["bytes"].max()
    stack_ids, sizes = most.index.to_numpy(np.int64), most.to_numpy(np.int64)
    # Stacks are put together until their rows fit.
    bound = bounds.stacks
    while True:
        under = fewer_stacks(trace.stacks, stack_ids, sizes, bound, bounds.sites)
        shown = table.assign(stack_id=table["stack_id"].map(under))
        shown = shown.groupby(["moment", "stack_id"], as_index=False)[_VALUES].sum()
        if bound <= 1 or run_count(shown, ["stack_id"], _VALUES) <= bounds.holding_runs:
            return Holdings(shown, under)
        bound //= 2


def run_count(table: pd.DataFrame, keys: list[str], values: list[str]) -> int:
    """How many rows `runs` makes of a table."""
    return len(runs(table, keys, values))


def runs(table: pd.DataFrame, keys: list[str], values: list[str]) -> pd.DataFrame:
    """Rows that are the same at moments that follow each other, as one, with the `first` and the `last` of them. table:
    with `moment`; keys: what is the same thing; values: what has to be the same, too. By first moment, then by key."""
    ordered = table.sort_values([*keys, "moment"], kind="stable", ignore_index=True)
    moment = ordered["moment"].to_numpy(np.int64)
    begins = np.ones(len(ordered), dtype=bool)
    if len(ordered) > 1:
        same = moment[1:] == moment[:-1] + 1
        for name in [*keys, *values]:
            column = ordered[name].to_numpy()
            same &= column[1:] == column[:-1]
        begins[1:] = ~same
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(ordered))[: len(starts)] - 1
    made = ordered.iloc[starts].drop(columns="moment").assign(first=moment[starts], last=moment[ends])
    return made.sort_values(["first", *keys], kind="stable", ignore_index=True)


def packed_holdings(holdings: Holdings, stacks: PageStacks, columns: Columns) -> dict[str, Any]:
    """As the page has them."""
    made = runs(holdings.table, ["stack_id"], _VALUES)
    frames = {int(stack): stacks.frame(int(stack)) if stack >= 0 else -1 for stack in made["stack_id"].unique()}
    return {
        "frame": columns.add(made["stack_id"].map(frames)),
        "bytes": columns.add(made["bytes"], differences=False),
        "blocks": columns.add(made["blocks"], differences=False),
        "backward": columns.add(made["backward_bytes"], differences=False),
        "first": columns.add(made["first"]),
        "length": columns.add(made["last"] - made["first"], differences=False),
    }
