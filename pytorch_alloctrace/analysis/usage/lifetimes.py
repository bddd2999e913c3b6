"""How often each site allocates, how long its blocks live, and what it costs.

Sums are of the whole run up to a position, or of one or more ranges. How long blocks live is measured over the last
whole steps of that, event by event, as many as fit into two million events (`LastSteps`): a block is churn if it is
allocated and freed within one step, and a retained activation if forward allocated it and backward freed it. That is a
lower bound of what is retained: what the program still holds after backward is freed later, and memory that a view or
an in-place operator keeps belongs to another line.
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
from .package_lines import WORTH_OPENING, Inside, look_inside
from .ranges import ranges_between

MOST_EVENTS = 2_000_000
"""Most events that are read, unless a single step has more."""
MOST_STEPS = 100
_COLUMNS = (
    *("seq", "kind", "device", "address", "requested_bytes"),
    *("stack_id", "forward_stack_id", "node_type"),
)
_BLOCK_COLUMNS = (
    *("device", "requested_bytes", "stack_id", "born", "freed"),
    *("survives", "backward", "freed_in_backward"),
)
_KEPT = np.iinfo(np.int64).max
"""When it was freed: not within these steps."""


@dataclass(frozen=True, eq=False)
class LastSteps:
    """The last whole steps before an event; in a trace without steps, the last events before it."""

    first: int
    """The first event."""
    end: int
    """The first event after them."""
    step_ends: npt.NDArray[np.int64]
    """The events that end the steps; empty for a trace without steps."""

    @classmethod
    def before(cls, trace: RecordedTrace, limit: int, first: int = 0) -> LastSteps:
        """The last steps that end before event `limit` and do not begin before event `first`."""
        ends = trace.positions.step_ends
        begins = np.append(0, ends + 1)[:-1]
        is_within = trace.positions.whole_steps(Range(first, limit))
        begins, ends = begins[is_within], ends[is_within]
        if not len(ends):
            return cls(max(limit - MOST_EVENTS, first), limit, ends)
        fitting = int((begins >= ends[-1] + 1 - MOST_EVENTS).sum())
        # Nothing marks the beginning of the first step: it would include everything that was allocated before it.
        whole = len(ends) - 1 if begins[0] == 0 else len(ends)
        count = min(max(fitting, 1), MOST_STEPS, max(whole, 1))
        return cls(int(begins[-count]), int(ends[-1]) + 1, ends[-count:])

    @classmethod
    def of_ranges(cls, trace: RecordedTrace, ranges: Sequence[Range]) -> list[LastSteps]:
        """Those of each range, the last range first, until there are as many steps or events as are measured at most.
        If some ranges have whole steps, the others are left out."""
        compacted = trace.integrity.compacted_until
        found = [cls.before(trace, within.end, max(within.first, compacted)) for within in reversed(ranges)]
        found = [one for one in found if len(one.step_ends)] or found
        steps = np.cumsum([len(one.step_ends) for one in found])
        events = np.cumsum([one.end - one.first for one in found])
        fitting = int(((steps <= MOST_STEPS) & (events <= MOST_EVENTS)).sum())
        return found[: max(fitting, 1)]

    def blocks(self, trace: RecordedTrace) -> pd.DataFrame:
        """The blocks that were allocated in these steps, one row each.

        Columns: device, requested_bytes; stack_id: as in `Trace.live`; born,
        freed: events, where `freed` is the largest number if the block is still live after these steps; survives: live
        at the end of its step (without steps, at the end of these events); backward: allocated by a node of autograd;
        freed_in_backward: freed while one was evaluated.
        """
        events = event_tables.events(
            trace, since=self.first - 1, until=self.end - 1, columns=_COLUMNS, kinds=("alloc", *FREES)
        )
        if events.empty:
            flags = dict.fromkeys(("survives", "freed_in_backward"), np.bool_)
            return no_rows(_BLOCK_COLUMNS, **flags)
        is_alloc = (events["kind"] == "alloc").to_numpy()
        # In the order of each address: the event after an alloc is what ended it. Not its completion: a stream may
        # use the block longer, the program does not.
        order = np.lexsort((events["seq"], events["address"], events["device"].cat.codes))
        ordered = events.iloc[order]
        same = _equals_next(ordered["address"]) & _equals_next(ordered["device"].cat.codes)
        freed = np.where(same, np.append(ordered["seq"].to_numpy(np.int64)[1:], _KEPT), _KEPT)
        in_node = (ordered["node_type"] != "").to_numpy()
        freed_in_node = same & np.append(in_node[1:], False)
        made = is_alloc[order]
        blocks = ordered.assign(freed=freed, freed_in_backward=freed_in_node)[made].sort_values("seq")
        born = blocks["seq"].to_numpy(np.int64)
        ends = np.append(self.step_ends, self.end) if len(self.step_ends) else np.array([self.end])
        # The event that ends a step belongs to it.
        end_of_step = ends[np.minimum(np.searchsorted(ends, born, side="left"), len(ends) - 1)]
        return pd.DataFrame(
            {
                "device": blocks["device"].astype(str).to_numpy(),
                "requested_bytes": blocks["requested_bytes"].to_numpy(np.int64),
                "stack_id": allocating_stacks(trace.stacks, blocks),
                "born": born,
                "freed": blocks["freed"].to_numpy(np.int64),
                "survives": blocks["freed"].to_numpy(np.int64) > end_of_step,
                "backward": (blocks["node_type"] != "").to_numpy(),
                "freed_in_backward": blocks["freed_in_backward"].to_numpy(),
            }
        )


def allocating_stacks(stacks: StackIndex, events: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return the stack of each alloc as `Trace.live` has it. events: with seq, address, stack_id, forward_stack_id,
    node_type."""
    seq, address, own, forward = (
        events[name].to_numpy(np.int64) for name in ("seq", "address", "stack_id", "forward_stack_id")
    )
    return stacks.allocating_stacks(seq, address, own, forward, events["node_type"].to_numpy(object))


def _equals_next(values: pd.Series[int]) -> npt.NDArray[np.bool_]:
    numbers = values.to_numpy()
    return np.append(numbers[1:] == numbers[:-1], False)


LATENCY_COLUMNS = {"slow_calls": "sum", "slow_ns": "sum", "slowest_ns": "max"}
"""How each is joined if several stacks are one row."""
_CALL_COLUMNS = ("seq", "kind", "device", "address", "requested_bytes", "stack_id", "forward_stack_id", "node_type")
_PER_STEP = ("allocations", "bytes", "churn_bytes", "retained_bytes", "backward_bytes")
_MEASURED = {f"measured_{name}": "sum" for name in (*_PER_STEP, "survivors")}
LIFETIME_COLUMNS = (*(f"{name}_per_step" for name in _PER_STEP), "temporary", *LATENCY_COLUMNS)


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """What each stack allocates, and how long it lives; `table` sums it up by site."""

    totals: pd.DataFrame
    """By stack_id: the columns of `stack_totals`, of LATENCY_COLUMNS if they were asked for, sums over the
    measured steps (measured_churn_bytes, ...), and of ranges live_bytes_change."""
    steps: int
    """How many were measured; 0 in a trace without steps, and where no whole step lies in the ranges."""
    trace_has_steps: bool
    is_of_ranges: bool

    def table(self, stacks: StackIndex, by: str) -> pd.DataFrame:
        """See `site_lifetimes` and `range_lifetimes`."""
        sums = {**_MEASURED, **LATENCY_COLUMNS, "live_bytes_change": "sum"}
        known = {name: how for name, how in sums.items() if name in self.totals}
        totals = self.totals.reset_index()
        columns = Table({str(name): totals[name].to_numpy(np.int64) for name in totals})
        table = tables.named_sites(stacks, group_stacks(stacks, columns, by, known), by)
        if self.is_of_ranges:
            table = table[(table[["allocations", "live_bytes_change", "slow_calls"]] != 0).any(axis=1)]
            table = table.sort_values("total_bytes", ascending=False, kind="stable", ignore_index=True)
        unknown = pd.Series(pd.NA, index=table.index, dtype="Float64")
        allocates = table["measured_allocations"] > 0
        for name in _PER_STEP:
            measured = table.pop(f"measured_{name}").astype("Float64")
            table[f"{name}_per_step"] = measured / self.steps if self.steps else unknown
        table["temporary"] = allocates & (table.pop("measured_survivors") == 0) & (table["live_bytes"] == 0)
        last = [name for name in LIFETIME_COLUMNS if name in table]
        return table[[name for name in table.columns if name not in last] + last]

    def insides(self, stacks: StackIndex, table: pd.DataFrame, column: str) -> dict[int, Inside]:
        """What is inside the packages that lines call, by row of the table by line: of a column that counts bytes.
        `bytes` of an `Inside` is the sum of that column, per step where the column is."""
        per_step = column.endswith("_per_step")
        name = f"measured_{column.removesuffix('_per_step')}" if per_step else column
        count = "live_blocks" if column == "live_bytes" else "measured_allocations" if per_step else "allocations"
        steps = max(self.steps, 1) if per_step else 1
        held = Table(
            {
                "stack_id": self.totals.index.to_numpy(np.int64),
                "live_bytes": self.totals[name].to_numpy(np.int64) // steps,
                "live_blocks": self.totals[count].to_numpy(np.int64) // steps,
            }
        )
        total = int(held["live_bytes"].sum())
        worth = table.index[(table[column].fillna(0) >= WORTH_OPENING * max(total, 1)).to_numpy(bool)]
        found = {int(row): look_inside(stacks, held, int(table["stack_id"][row]), total) for row in worth}
        return {row: inside for row, inside in found.items() if inside is not None}


def site_lifetimes(
    trace: RecordedTrace,
    *,
    device: str | None = None,
    by: str = "line",
    since: Position | None = None,
    until: Position = "end",
) -> pd.DataFrame:
    """Return SITE_TOTALS and NAME_COLUMNS, and averages per measured step (<NA> without steps):

    allocations_per_step; bytes_per_step: requested; churn_bytes_per_step: those that are no longer live at the end of
    their step; retained_bytes_per_step: those that forward allocated and backward freed; backward_bytes_per_step: those
    that backward allocated; temporary: the site allocates, but none of it is live at the end of any measured step or
    now.

    Of the whole run up to the position: slow_calls, slow_ns, slowest_ns (see `_slow_calls`). With `since` it is of a
    range: see `range_lifetimes`.
    """
    if since is None:
        found = whole_lifetimes(trace, until, device=device)
    else:
        found = range_lifetimes(trace, ranges_between(trace, [(since, until)], device=device), device=device)
    return found.table(trace.stacks, by)


def whole_lifetimes(
    trace: RecordedTrace, until: Position = "end", *, device: str | None = None, slow_calls: bool = True
) -> Lifetimes:
    """Of the whole run up to a position. It takes three passes over the trace, and keeps the events of the measured
    steps in memory. slow_calls=False: without LATENCY_COLUMNS, whose pass takes longest."""
    device = trace.named_device(device)
    whole = Range(0, trace.first_event_after(until, device))
    last = LastSteps.of_ranges(trace, [whole])
    parts = [
        tables.stack_totals(trace, whole.until, device=device),
        _measured(last, trace, device),
        *([_slow_calls(trace, device, [whole])] if slow_calls else []),
    ]
    return Lifetimes(_joined(parts), _steps_of(last), len(trace.positions.step_ends) > 0, is_of_ranges=False)


def range_lifetimes(trace: RecordedTrace, ranges: Sequence[Range], *, device: str | None = None) -> Lifetimes:
    """Of some ranges together, which are in order and do not overlap: allocations, total_bytes and slow calls are sums
    over them, largest_bytes and slowest_ns the largest in any; live_bytes and live_blocks are those at the end of the
    last one. live_bytes_change, one more column, is how much more a site holds at the end of a range than at its
    beginning, summed over the ranges. The measured steps lie wholly within one of them.

    Rows are ordered by total_bytes, without sites that neither allocated nor changed. It takes three passes over the
    ranges and two states of the replay for each.
    """
    device = trace.named_device(device)
    at_ends = [tables.stack_totals(trace, within.until, device=device) for within in ranges]
    at_begins = [tables.stack_totals(trace, within.since, device=device) for within in ranges]
    last = LastSteps.of_ranges(trace, ranges)
    parts = [at_ends[-1], _measured(last, trace, device), _slow_calls(trace, device, ranges)]
    totals = _joined([*parts, *(table[["stack_id"]] for table in at_ends[:-1])])
    made = _summed(at_ends, totals.index) - _summed(at_begins, totals.index)
    totals[["allocations", "total_bytes"]] = made[["allocations", "total_bytes"]]
    totals["live_bytes_change"] = made["live_bytes"]
    totals["largest_bytes"] = _largest(trace, device, ranges).reindex(totals.index, fill_value=0)
    return Lifetimes(totals, _steps_of(last), len(trace.positions.step_ends) > 0, is_of_ranges=True)


def _steps_of(last: Sequence[LastSteps]) -> int:
    return sum(len(steps.step_ends) for steps in last)


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables by stack side by side, 0 where one does not have the stack."""
    stacks = pd.Index(np.unique(np.concatenate([table["stack_id"] for table in parts])), name="stack_id")
    filled = [table.set_index("stack_id").reindex(stacks, fill_value=0) for table in parts]
    return pd.concat(filled, axis=1)


def _summed(parts: Sequence[pd.DataFrame], stacks: pd.Index[Any]) -> pd.DataFrame:
    """The sums of tables by stack, for these stacks."""
    names = ["allocations", "total_bytes", "live_bytes"]
    return pd.concat(parts).groupby("stack_id")[names].sum().reindex(stacks, fill_value=0)


def _largest(trace: RecordedTrace, device: str | None, ranges: Sequence[Range]) -> pd.Series[int]:
    """The largest allocation of some ranges, by stack."""
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
        own = frame if device is None else frame[frame["device"] == device]
        # Only one of the two is known.
        largest.append(own["requested_bytes"].groupby(own[["stack_id", "forward_stack_id"]].max(axis=1)).max())
    found: pd.Series[int] = pd.concat(largest).groupby(level=0).max()
    return found


def _measured(last: Sequence[LastSteps], trace: RecordedTrace, device: str | None) -> pd.DataFrame:
    """Sums of the blocks of the measured steps, by stack."""
    parts = [steps.blocks(trace) for steps in last]
    # An empty table is left out: it would change the types of the others' columns.
    blocks = pd.concat([table for table in parts if len(table)] or parts[:1], ignore_index=True)
    own = blocks if device is None else blocks[blocks["device"] == device]
    size = own["requested_bytes"]
    return (
        own.assign(
            measured_allocations=1,
            measured_bytes=size,
            measured_churn_bytes=size.where(~own["survives"], 0),
            measured_retained_bytes=size.where(~own["backward"] & own["freed_in_backward"], 0),
            measured_backward_bytes=size.where(own["backward"], 0),
            measured_survivors=own["survives"].astype(np.int64),
        )
        .groupby("stack_id", as_index=False)[list(_MEASURED)]
        .sum()
    )


def _slow_calls(trace: RecordedTrace, device: str | None, ranges: Sequence[Range]) -> pd.DataFrame:
    """Where the program waited for the allocator, one row per stack: stack_id (as in `Trace.live`), slow_calls, slow_ns
    (all together), slowest_ns (the longest one).

    A call is slow if it took over 10 microseconds or got segments from the driver (events of kind latency, see
    docs/trace-format.md); only CUDA's allocators report such calls. One pass over the events of the ranges, as far as
    the last such call.
    """
    left = trace.kind_counts.get("latency", 0)
    found = [pd.DataFrame({"stack_id": np.array([], dtype=np.int64), "ns": np.array([], dtype=np.int64)})]
    before: pd.DataFrame | None = None
    kinds = ("alloc", "oom", "latency")
    events = (
        frame
        for within in (ranges if left else ())
        for frame in event_tables.iter_events(
            trace, since=within.since, until=within.until, columns=_CALL_COLUMNS, kinds=kinds
        )
    )
    for frame in events:
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
        stacks = allocating_stacks(trace.stacks, called[own])
        found.append(pd.DataFrame({"stack_id": stacks, "ns": calls["requested_bytes"].to_numpy(np.int64)[own]}))
        if left <= 0:
            break
    groups = pd.concat(found).groupby("stack_id")["ns"]
    table = groups.agg(slow_calls="size", slow_ns="sum", slowest_ns="max").astype(np.int64)
    return table.reset_index()
