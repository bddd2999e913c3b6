"""How often each place in the code allocates, how long its blocks live, and what it costs.

Sums are of the whole run up to a moment, or of a stretch between two. How long blocks live is measured over the last
whole steps before it (see `window`): a block is churn if it is made and freed within one step, and a retained
activation if forward made it and backward freed it. That is a lower bound of what is retained: what the program itself
still holds when backward has run, it frees later; and memory that a view or an in-place operator keeps is another
line's.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import group_stacks
from .latency import LATENCY_COLUMNS, slow_calls
from .window import Window

_PER_STEP = ("allocations", "bytes", "churn", "retained", "backward")
_MEASURED = {f"measured_{name}": "sum" for name in (*_PER_STEP, "survivors")}
LIFETIME_COLUMNS = (*(f"{name}_per_step" for name in _PER_STEP), "temporary", *LATENCY_COLUMNS)


def site_lifetimes(
    trace: RecordedTrace,
    *,
    device: str | None = None,
    by: str = "line",
    since: Position | None = None,
    until: Position = "end",
) -> pd.DataFrame:
    """The columns of `Trace.sites`, ordered as there, and of the measured steps, on average per step (<NA> without
    steps):

    allocations_per_step; bytes_per_step: requested; churn_per_step: bytes of it that are not live at the end of their
    step; retained_per_step: bytes of it that forward made and backward freed; backward_per_step: bytes of it that
    backward allocated; temporary: allocates, but nothing of it is live at the end of any measured step, or now.

    Of the whole run up to the moment: slow_calls, slow_ns, slowest_ns (see `latency.slow_calls`).

    since: allocations, bytes and slow calls are those after this moment; the measured steps lie after it; live_change
    (only then there) is what a place holds more at the end than then. `largest` is of the whole run. Ordered by bytes;
    left out is what neither allocated nor changed.

    Three passes over the trace, and the events of the measured steps in memory.
    """
    end = trace.first_event_after(until, device)
    first = 0 if since is None else trace.range(since, until, device=device).first
    window = Window.before(trace, end, first)
    tables = [
        trace.stack_totals("end" if end is None else end - 1, device=device).astype(np.int64),
        _measured(window.blocks(trace), device),
        slow_calls(trace, device, end, first),
    ]
    stacks = pd.Index(np.unique(np.concatenate([table["stack_id"] for table in tables])), name="stack_id")
    filled = [table.set_index("stack_id").reindex(stacks, fill_value=0) for table in tables]
    totals = pd.concat(filled, axis=1)
    if since is not None:
        totals = _since(totals, trace.stack_totals(first - 1, device=device).astype(np.int64).set_index("stack_id"))
    more = {name: "sum" for name in ("live_change",) if name in totals}
    table = group_stacks(trace.stacks, totals.reset_index(), by, {**_MEASURED, **LATENCY_COLUMNS, **more})
    if since is not None:
        table = table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
    steps = len(window.step_ends)
    unknown = pd.Series(pd.NA, index=table.index, dtype="Float64")
    allocates = table["measured_allocations"] > 0
    for name in _PER_STEP:
        measured = table.pop(f"measured_{name}").astype("Float64")
        table[f"{name}_per_step"] = measured / steps if steps else unknown
    table["temporary"] = allocates & (table.pop("measured_survivors") == 0) & (table["live_bytes"] == 0)
    return table[[name for name in table.columns if name not in LIFETIME_COLUMNS] + list(LIFETIME_COLUMNS)]


def _since(totals: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """The totals of a range, by stack, from those at its end and at its beginning."""
    before = before.reindex(totals.index, fill_value=0)
    for name in ("allocations", "bytes"):
        totals[name] -= before[name]
    totals["live_change"] = totals["live_bytes"] - before["live_bytes"]
    return totals[(totals[["allocations", "live_change", "slow_calls"]] != 0).any(axis=1)]


def _measured(blocks: pd.DataFrame, device: str | None) -> pd.DataFrame:
    """Sums of the blocks of a window by stack."""
    own = blocks if device is None else blocks[blocks["device"] == device]
    size = own["nbytes"]
    return (
        own.assign(
            measured_allocations=1,
            measured_bytes=size,
            measured_churn=size.where(~own["survives"], 0),
            measured_retained=size.where(~own["backward"] & own["freed_in_backward"], 0),
            measured_backward=size.where(own["backward"], 0),
            measured_survivors=own["survives"].astype(np.int64),
        )
        .groupby("stack_id", as_index=False)[list(_MEASURED)]
        .sum()
    )
