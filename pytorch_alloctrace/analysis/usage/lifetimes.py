"""Allocations of each site: how often, how long the blocks live, and the time in the allocator.

Sums cover the run up to a position, or ranges. Lifetimes are measured event by event over the last complete steps, up
to two million events (`LastSteps`). A block is churn if it is freed in the step that allocated it, and a retained
activation if forward allocated it and backward freed it. Retained bytes are a lower bound: what the program holds after
backward is freed later, and memory kept by a view or an in-place operator belongs to another line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading import event_tables, tables
from ...reading.positions import Position, Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.sites import StackIndex, group_stacks
from ...reading.table import Table
from ...reading.tables import no_rows
from .package_lines import WORTH_OPENING, PackageLines, find_package_lines
from .ranges import ranges_between

MAX_EVENTS = 2_000_000
"""Maximum number of events to read, unless a single step has more."""
MAX_STEPS = 100
_EVENT_COLUMNS = (
    *("seq", "kind", "device", "address", "requested_bytes"),
    *("stack_id", "forward_stack_id", "node_type"),
)
_BLOCK_COLUMNS = (
    *("device", "requested_bytes", "stack_id", "born", "freed"),
    *("survives", "backward", "freed_in_backward"),
)
_NEVER_FREED = np.iinfo(np.int64).max
"""Value of `freed` for a block that is live after the measured steps."""


@dataclass(frozen=True, eq=False)
class LastSteps:
    """The last complete steps before an event; in a trace without steps, the last events before it."""

    first: int
    end: int
    """First event after the steps."""
    step_ends: npt.NDArray[np.int64]
    """Empty for a trace without steps."""

    @classmethod
    def before(cls, trace: RecordedTrace, limit: int, first: int = 0) -> LastSteps:
        """Return the last steps that end before event `limit` and begin at or after event `first`."""
        ends = trace.positions.step_ends
        begins = np.append(0, ends + 1)[:-1]
        is_within = trace.positions.whole_steps(Range(first, limit))
        begins, ends = begins[is_within], ends[is_within]
        if not len(ends):
            return cls(max(limit - MAX_EVENTS, first), limit, ends)
        fitting_steps = int((begins >= ends[-1] + 1 - MAX_EVENTS).sum())
        # The first step has no recorded beginning: it would include everything allocated before it.
        complete_steps = len(ends) - 1 if begins[0] == 0 else len(ends)
        count = min(max(fitting_steps, 1), MAX_STEPS, max(complete_steps, 1))
        return cls(int(begins[-count]), int(ends[-1]) + 1, ends[-count:])

    @classmethod
    def of_ranges(cls, trace: RecordedTrace, ranges: Sequence[Range]) -> list[LastSteps]:
        """Return the last steps of each range, the last range first, within MAX_STEPS and MAX_EVENTS altogether.

        Ranges without complete steps are left out if another range has some.
        """
        compacted = trace.integrity.compacted_until
        windows = [cls.before(trace, within.end, max(within.first, compacted)) for within in reversed(ranges)]
        windows = [window for window in windows if len(window.step_ends)] or windows
        steps = np.cumsum([len(window.step_ends) for window in windows])
        events = np.cumsum([window.end - window.first for window in windows])
        fitting_windows = int(((steps <= MAX_STEPS) & (events <= MAX_EVENTS)).sum())
        return windows[: max(fitting_windows, 1)]

    def blocks(self, trace: RecordedTrace) -> pd.DataFrame:
        """Return one row per block that was allocated in these steps: _BLOCK_COLUMNS.

        born and freed are events; survives: live at the end of its step (without steps, of these events); backward:
        allocated by an autograd node; freed_in_backward: freed while a node was running.
        """
        events = event_tables.events(
            trace, since=self.first - 1, until=self.end - 1, columns=_EVENT_COLUMNS, kinds=("alloc", *FREES)
        )
        if events.empty:
            flags = dict.fromkeys(("survives", "freed_in_backward"), np.bool_)
            return no_rows(_BLOCK_COLUMNS, **flags)
        is_alloc = (events["kind"] == "alloc").to_numpy()
        # Sorted by address, the event after an alloc is its free, as the program requested it. The completion comes
        # later if another stream still uses the block.
        order = np.lexsort((events["seq"], events["address"], events["device"].cat.codes))
        ordered = events.iloc[order]
        has_next = _equals_next(ordered["address"]) & _equals_next(ordered["device"].cat.codes)
        freed = np.where(has_next, np.append(ordered["seq"].to_numpy(np.int64)[1:], _NEVER_FREED), _NEVER_FREED)
        in_node = (ordered["node_type"] != "").to_numpy()
        freed_in_node = has_next & np.append(in_node[1:], False)
        is_alloc_ordered = is_alloc[order]
        blocks = ordered.assign(freed=freed, freed_in_backward=freed_in_node)[is_alloc_ordered].sort_values("seq")
        alloc_seqs = blocks["seq"].to_numpy(np.int64)
        ends = np.append(self.step_ends, self.end) if len(self.step_ends) else np.array([self.end])
        # The event that ends a step belongs to it.
        end_of_step = ends[np.minimum(np.searchsorted(ends, alloc_seqs, side="left"), len(ends) - 1)]
        return pd.DataFrame(
            {
                "device": blocks["device"].astype(str).to_numpy(),
                "requested_bytes": blocks["requested_bytes"].to_numpy(np.int64),
                "stack_id": allocating_stacks(trace.stacks, blocks),
                "born": alloc_seqs,
                "freed": blocks["freed"].to_numpy(np.int64),
                "survives": blocks["freed"].to_numpy(np.int64) > end_of_step,
                "backward": (blocks["node_type"] != "").to_numpy(),
                "freed_in_backward": blocks["freed_in_backward"].to_numpy(),
            }
        )


def allocating_stacks(stacks: StackIndex, events: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the stack of each alloc event, as in `Trace.live`."""
    seq, address, own, forward = (
        events[name].to_numpy(np.int64) for name in ("seq", "address", "stack_id", "forward_stack_id")
    )
    return stacks.allocating_stacks(seq, address, own, forward, events["node_type"].to_numpy(object))


def _equals_next(values: pd.Series[int]) -> npt.NDArray[np.bool_]:
    numbers = values.to_numpy()
    return np.append(numbers[1:] == numbers[:-1], False)


LATENCY_COLUMNS = {"slow_calls": "sum", "slow_ns": "sum", "slowest_ns": "max"}
"""Columns of slow calls, each with the function that aggregates it over stacks."""
_CALL_COLUMNS = ("seq", "kind", "device", "address", "requested_bytes", "stack_id", "forward_stack_id", "node_type")
_PER_STEP = ("allocations", "bytes", "churn_bytes", "retained_bytes", "backward_bytes")
_MEASURED = {f"measured_{name}": "sum" for name in (*_PER_STEP, "survivors")}
LIFETIME_COLUMNS = (*(f"{name}_per_step" for name in _PER_STEP), "temporary", *LATENCY_COLUMNS)


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """Allocations and lifetimes by stack; `table` aggregates them by site."""

    totals: pd.DataFrame
    """One row per stack: `stack_totals`, _MEASURED, and if requested LATENCY_COLUMNS; for ranges live_bytes_change."""
    steps: int
    """Number of measured steps; 0 if no complete step lies in the ranges or the run."""
    trace_has_steps: bool
    is_of_ranges: bool

    def table(self, stacks: StackIndex, by: str) -> pd.DataFrame:
        """Return the table of `Trace.usage` for the run or the ranges."""
        sums = {**_MEASURED, **LATENCY_COLUMNS, "live_bytes_change": "sum"}
        aggregations = {name: function for name, function in sums.items() if name in self.totals}
        totals = self.totals.reset_index()
        columns = Table({str(name): totals[name].to_numpy(np.int64) for name in totals})
        table = tables.named_sites(stacks, group_stacks(stacks, columns, by, aggregations), by)
        if self.is_of_ranges:
            table = table[(table[["allocations", "live_bytes_change", "slow_calls"]] != 0).any(axis=1)]
            table = table.sort_values("total_bytes", ascending=False, kind="stable", ignore_index=True)
        no_averages = pd.Series(pd.NA, index=table.index, dtype="Float64")
        allocates = table["measured_allocations"] > 0
        for name in _PER_STEP:
            measured = table.pop(f"measured_{name}").astype("Float64")
            table[f"{name}_per_step"] = measured / self.steps if self.steps else no_averages
        table["temporary"] = allocates & (table.pop("measured_survivors") == 0) & (table["live_bytes"] == 0)
        last_columns = [name for name in LIFETIME_COLUMNS if name in table]
        return table[[name for name in table.columns if name not in last_columns] + last_columns]

    def package_lines(self, stacks: StackIndex, table: pd.DataFrame, column: str) -> dict[int, PackageLines]:
        """Return the package lines of the large rows of `table`, by row, with the bytes of `column`."""
        per_step = column.endswith("_per_step")
        name = f"measured_{column.removesuffix('_per_step')}" if per_step else column
        count = "live_blocks" if column == "live_bytes" else "measured_allocations" if per_step else "allocations"
        steps = max(self.steps, 1) if per_step else 1
        stack_rows = Table(
            {
                "stack_id": self.totals.index.to_numpy(np.int64),
                "live_bytes": self.totals[name].to_numpy(np.int64) // steps,
                "live_blocks": self.totals[count].to_numpy(np.int64) // steps,
            }
        )
        total = int(stack_rows["live_bytes"].sum())
        large_rows = table.index[(table[column].fillna(0) >= WORTH_OPENING * max(total, 1)).to_numpy(bool)]
        package_lines = {
            int(row): find_package_lines(stacks, stack_rows, int(table["stack_id"][row]), total) for row in large_rows
        }
        return {row: lines for row, lines in package_lines.items() if lines is not None}


def site_lifetimes(
    trace: RecordedTrace,
    *,
    device: str | None = None,
    by: str = "line",
    since: Position | None = None,
    until: Position = "end",
) -> pd.DataFrame:
    """Return the allocations and lifetimes by site, in the run up to a position or in a range: see `Trace.usage`."""
    if since is None:
        lifetimes = lifetimes_of_run(trace, until, device=device)
    else:
        lifetimes = range_lifetimes(trace, ranges_between(trace, [(since, until)], device=device), device=device)
    return lifetimes.table(trace.stacks, by)


def lifetimes_of_run(
    trace: RecordedTrace, until: Position = "end", *, device: str | None = None, slow_calls: bool = True
) -> Lifetimes:
    """Return the lifetimes of the whole run up to a position; the pass for slow_calls takes longest."""
    device = trace.named_device(device)
    run = Range(0, trace.first_event_after(until, device))
    windows = LastSteps.of_ranges(trace, [run])
    parts = [
        tables.stack_totals(trace, run.until, device=device),
        _sum_measured(windows, trace, device),
        *([_sum_slow_calls(trace, device, [run])] if slow_calls else []),
    ]
    return Lifetimes(_join_tables(parts), _count_steps(windows), len(trace.positions.step_ends) > 0, is_of_ranges=False)


def range_lifetimes(trace: RecordedTrace, ranges: Sequence[Range], *, device: str | None = None) -> Lifetimes:
    """Return the lifetimes of ordered, disjoint ranges together, from three passes over them.

    live_bytes and live_blocks are those at the end of the last range. The other columns, such as live_bytes_change (the
    growth of the live bytes), are sums or maxima over the ranges.
    """
    device = trace.named_device(device)
    end_totals = [tables.stack_totals(trace, within.until, device=device) for within in ranges]
    begin_totals = [tables.stack_totals(trace, within.since, device=device) for within in ranges]
    windows = LastSteps.of_ranges(trace, ranges)
    parts = [end_totals[-1], _sum_measured(windows, trace, device), _sum_slow_calls(trace, device, ranges)]
    totals = _join_tables([*parts, *(table[["stack_id"]] for table in end_totals[:-1])])
    changes = _sum_tables(end_totals, totals.index) - _sum_tables(begin_totals, totals.index)
    totals[["allocations", "total_bytes"]] = changes[["allocations", "total_bytes"]]
    totals["live_bytes_change"] = changes["live_bytes"]
    totals["largest_bytes"] = _find_largest(trace, device, ranges).reindex(totals.index, fill_value=0)
    return Lifetimes(totals, _count_steps(windows), len(trace.positions.step_ends) > 0, is_of_ranges=True)


def _count_steps(windows: Sequence[LastSteps]) -> int:
    return sum(len(window.step_ends) for window in windows)


def _join_tables(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    stacks = pd.Index(np.unique(np.concatenate([table["stack_id"] for table in parts])), name="stack_id")
    filled = [table.set_index("stack_id").reindex(stacks, fill_value=0) for table in parts]
    return pd.concat(filled, axis=1)


def _sum_tables(parts: Sequence[pd.DataFrame], stacks: pd.Index[Any]) -> pd.DataFrame:
    names = ["allocations", "total_bytes", "live_bytes"]
    return pd.concat(parts).groupby("stack_id")[names].sum().reindex(stacks, fill_value=0)


def _find_largest(trace: RecordedTrace, device: str | None, ranges: Sequence[Range]) -> pd.Series[int]:
    largest = [pd.Series(dtype=np.int64, index=pd.Index([], dtype=np.int64))]
    columns = ("device", "requested_bytes", "stack_id", "forward_stack_id")
    frames = (
        frame
        for within in ranges
        for frame in event_tables.iter_events(
            trace, since=within.since, until=within.until, columns=columns, kinds=("alloc",)
        )
    )
    for frame in frames:
        allocations = frame if device is None else frame[frame["device"] == device]
        # At most one of the two stacks is recorded: the other is 0.
        largest.append(
            allocations["requested_bytes"].groupby(allocations[["stack_id", "forward_stack_id"]].max(axis=1)).max()
        )
    maxima: pd.Series[int] = pd.concat(largest).groupby(level=0).max()
    return maxima


def _sum_measured(windows: Sequence[LastSteps], trace: RecordedTrace, device: str | None) -> pd.DataFrame:
    parts = [window.blocks(trace) for window in windows]
    # Empty tables are left out: they would change the column types of the result.
    blocks = pd.concat([table for table in parts if len(table)] or parts[:1], ignore_index=True)
    device_blocks = blocks if device is None else blocks[blocks["device"] == device]
    size = device_blocks["requested_bytes"]
    return (
        device_blocks.assign(
            measured_allocations=1,
            measured_bytes=size,
            measured_churn_bytes=size.where(~device_blocks["survives"], 0),
            measured_retained_bytes=size.where(~device_blocks["backward"] & device_blocks["freed_in_backward"], 0),
            measured_backward_bytes=size.where(device_blocks["backward"], 0),
            measured_survivors=device_blocks["survives"].astype(np.int64),
        )
        .groupby("stack_id", as_index=False)[list(_MEASURED)]
        .sum()
    )


def _sum_slow_calls(trace: RecordedTrace, device: str | None, ranges: Sequence[Range]) -> pd.DataFrame:
    """Return LATENCY_COLUMNS by stack, from one pass up to the last slow call.

    A call is slow if it took over 10 microseconds or allocated segments (events of kind latency, see
    docs/trace-format.md). Only CUDA's allocators report slow calls.
    """
    calls_left = trace.kind_counts.get("latency", 0)
    call_tables = [pd.DataFrame({"stack_id": np.array([], dtype=np.int64), "ns": np.array([], dtype=np.int64)})]
    previous_requests: pd.DataFrame | None = None
    kinds = ("alloc", "oom", "latency")
    events = (
        frame
        for within in (ranges if calls_left else ())
        for frame in event_tables.iter_events(
            trace, since=within.since, until=within.until, columns=_CALL_COLUMNS, kinds=kinds
        )
    )
    for frame in events:
        calls = frame[(frame["kind"] == "latency").to_numpy()]
        requests = frame[(frame["kind"] != "latency").to_numpy()]
        # The request of a call may be at the end of the previous chunk.
        recent_requests = (
            requests if previous_requests is None else pd.concat([previous_requests.iloc[-1000:], requests])
        )
        previous_requests = recent_requests
        calls_left -= len(calls)
        call_requests = recent_requests.set_index("seq", drop=False).reindex(calls["address"].to_numpy(np.int64))
        is_selected = call_requests["stack_id"].notna().to_numpy() & (
            np.ones(len(call_requests), dtype=bool)
            if device is None
            else (call_requests["device"] == device).to_numpy()
        )
        stacks = allocating_stacks(trace.stacks, call_requests[is_selected])
        call_tables.append(
            pd.DataFrame({"stack_id": stacks, "ns": calls["requested_bytes"].to_numpy(np.int64)[is_selected]})
        )
        if calls_left <= 0:
            break
    groups = pd.concat(call_tables).groupby("stack_id")["ns"]
    table = groups.agg(slow_calls="size", slow_ns="sum", slowest_ns="max").astype(np.int64)
    return table.reset_index()
