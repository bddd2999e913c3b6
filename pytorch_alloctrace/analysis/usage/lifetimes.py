"""How often each site allocates, how long its blocks live, and what it costs.

Sums are of the whole run up to a position, or of a range. How long blocks live is measured over the last whole steps
before it (see `last_steps`): a block is churn if it is allocated and freed within one step, and a retained activation
if forward allocated it and backward freed it. That is a lower bound of what is retained: what the program still holds
after backward is freed later, and memory that a view or an in-place operator keeps belongs to another line.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import group_stacks
from .last_steps import LastSteps

LATENCY_COLUMNS = {"slow_calls": "sum", "slow_ns": "sum", "slowest_ns": "max"}
"""How each is joined if several stacks are one row."""
_CALL_COLUMNS = ("seq", "kind", "device", "address", "nbytes", "stack_id", "forward_stack_id", "node_type")
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
    """The columns of `Trace.sites`, in the same order, and averages per measured step (<NA> without steps):

    allocations_per_step; bytes_per_step: requested; churn_per_step: those bytes that are no longer live at the end of
    their step; retained_per_step: those that forward allocated and backward freed; backward_per_step: those that
    backward allocated; temporary: the site allocates, but none of it is live at the end of any measured step or now.

    Of the whole run up to the position: slow_calls, slow_ns, slowest_ns (see `_slow_calls`).

    since: allocations, bytes, largest and slow calls are those after this position, and the measured steps lie after
    it; live_change (only with `since`) is how much more a site holds at the end than at `since`. Rows are ordered by
    bytes, without sites that neither allocated nor changed.

    It takes three passes over the trace (four with `since`), and keeps the events of the measured steps in memory.
    """
    device = trace.named_device(device)
    end = trace.first_event_after(until, device)
    first = 0 if since is None else trace.range(since, until, device=device).first
    last = LastSteps.before(trace, end, first)
    tables = [
        trace.stack_totals(end - 1, device=device).astype(np.int64),
        _measured(last.blocks(trace), device),
        _slow_calls(trace, device, Range(first, end)),
    ]
    stacks = pd.Index(np.unique(np.concatenate([table["stack_id"] for table in tables])), name="stack_id")
    filled = [table.set_index("stack_id").reindex(stacks, fill_value=0) for table in tables]
    totals = pd.concat(filled, axis=1)
    if since is not None:
        totals = _since(totals, trace.stack_totals(first - 1, device=device).astype(np.int64).set_index("stack_id"))
        totals["largest"] = _largest(trace, device, Range(first, end)).reindex(totals.index, fill_value=0)
    more = {name: "sum" for name in ("live_change",) if name in totals}
    table = group_stacks(trace.stacks, totals.reset_index(), by, {**_MEASURED, **LATENCY_COLUMNS, **more})
    if since is not None:
        table = table.sort_values("bytes", ascending=False, kind="stable", ignore_index=True)
    steps = len(last.step_ends)
    unknown = pd.Series(pd.NA, index=table.index, dtype="Float64")
    allocates = table["measured_allocations"] > 0
    for name in _PER_STEP:
        measured = table.pop(f"measured_{name}").astype("Float64")
        table[f"{name}_per_step"] = measured / steps if steps else unknown
    table["temporary"] = allocates & (table.pop("measured_survivors") == 0) & (table["live_bytes"] == 0)
    return table[[name for name in table.columns if name not in LIFETIME_COLUMNS] + list(LIFETIME_COLUMNS)]


def measured_steps(
    trace: RecordedTrace, *, device: str | None = None, since: Position | None = None, until: Position = "end"
) -> int:
    """How many steps `site_lifetimes` measures; 0 in a trace without steps."""
    first = 0 if since is None else trace.range(since, until, device=device).first
    return len(LastSteps.before(trace, trace.first_event_after(until, device), first).step_ends)


def _since(totals: pd.DataFrame, before: pd.DataFrame) -> pd.DataFrame:
    """The totals of a range, by stack, from those at its end and at its beginning."""
    before = before.reindex(totals.index, fill_value=0)
    for name in ("allocations", "bytes"):
        totals[name] -= before[name]
    totals["live_change"] = totals["live_bytes"] - before["live_bytes"]
    return totals[(totals[["allocations", "live_change", "slow_calls"]] != 0).any(axis=1)]


def _largest(trace: RecordedTrace, device: str | None, within: Range) -> pd.Series[int]:
    """The largest allocation of a range, by stack."""
    largest = [pd.Series(dtype=np.int64, index=pd.Index([], dtype=np.int64))]
    columns = ("device", "nbytes", "stack_id", "forward_stack_id")
    for frame in trace.iter_events(since=within.since, until=within.until, columns=columns, kinds=("alloc",)):
        own = frame if device is None else frame[frame["device"] == device]
        # Only one of the two is known.
        largest.append(own["nbytes"].groupby(own[["stack_id", "forward_stack_id"]].max(axis=1)).max())
    found: pd.Series[int] = pd.concat(largest).groupby(level=0).max()
    return found


def _measured(blocks: pd.DataFrame, device: str | None) -> pd.DataFrame:
    """Sums of the blocks of the measured steps, by stack."""
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


def _slow_calls(trace: RecordedTrace, device: str | None, within: Range) -> pd.DataFrame:
    """Where the program waited for the allocator, one row per stack: stack_id (as in `Trace.live`), slow_calls, slow_ns
    (all together), slowest_ns (the longest one).

    A call is slow if it took over 10 microseconds or got segments from the driver (events of kind latency, see
    docs/trace-format.md); only CUDA's allocators report such calls. One pass over the events of the range, as far as
    the last such call.
    """
    left = trace.kind_counts.get("latency", 0)
    found = [pd.DataFrame({"stack_id": np.array([], dtype=np.int64), "ns": np.array([], dtype=np.int64)})]
    before: pd.DataFrame | None = None
    kinds = ("alloc", "oom", "latency")
    events = trace.iter_events(since=within.since, until=within.until, columns=_CALL_COLUMNS, kinds=kinds)
    for frame in events if left else ():
        calls = frame[(frame["kind"] == "latency").to_numpy()]
        requests = frame[(frame["kind"] != "latency").to_numpy()]
        # The request of the call may be at the end of the chunk before.
        known = requests if before is None else pd.concat([before.iloc[-1000:], requests])
        before = known
        left -= len(calls)
        called = known.set_index("seq", drop=False).reindex(calls["address"].to_numpy(np.int64))
        own = called["stack_id"].notna().to_numpy() & (
            np.ones(len(called), dtype=bool) if device is None else (called["device"] == device).to_numpy()
        )
        stacks = trace.stacks.makers(called[own])
        found.append(pd.DataFrame({"stack_id": stacks, "ns": calls["nbytes"].to_numpy(np.int64)[own]}))
        if left <= 0:
            break
    groups = pd.concat(found).groupby("stack_id")["ns"]
    table = groups.agg(slow_calls="size", slow_ns="sum", slowest_ns="max").astype(np.int64)
    return table.reset_index()
