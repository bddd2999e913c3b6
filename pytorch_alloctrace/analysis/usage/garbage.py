"""Blocks freed by Python's garbage collector: garbage of reference cycles, exact where the collector was recorded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...reading import event_tables, tables
from ...reading.positions import Position, Range
from ...reading.recorded import FREES, RecordedTrace
from ...reading.table import Table, sums, texts
from .lifetimes import allocating_stacks

_BLOCK_COLUMNS = (
    *("seq", "kind", "device", "address", "requested_bytes", "thread"),
    *("stack_id", "forward_stack_id", "node_type"),
)


def garbage(
    trace: RecordedTrace, *, since: Position | None = None, until: Position | None = None, device: str | None = None
) -> pd.DataFrame:
    """Implement `Trace.garbage`."""
    blocks = collected_blocks(trace, trace.unchecked_range(since, until, device), trace.named_device(device))
    keys = list(zip(blocks["device"].tolist(), blocks["stack_id"].tolist(), strict=True))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_block = np.array([numbers[key] for key in keys], np.int64)
    garbage_bytes = sums(of_block, blocks["requested_bytes"], len(numbers))
    order = np.argsort(-garbage_bytes, kind="stable")
    table = Table(
        {
            "device": texts(name for name, _ in numbers),
            "stack_id": np.array([stack for _, stack in numbers], np.int64),
            "garbage_bytes": garbage_bytes,
            "garbage_blocks": np.bincount(of_block, minlength=len(numbers)).astype(np.int64),
            "last_seq": np.array([*dict(zip(keys, blocks["seq"].tolist(), strict=True)).values()], np.int64),
        }
    ).take(order)
    return tables.named_sites(trace.stacks, table, "stack")


def collected_blocks(trace: RecordedTrace, within: Range, device: str | None = None) -> Table:
    """Return the blocks whose free was requested during a collection, by its thread, one row each, in order.

    Blocks allocated during the same collection, by finalizers, are left out. Reads the events up to three times, and
    needs memory for the events at the addresses of these blocks only.

    Columns: seq (of the free), device, requested_bytes, stack_id (of the allocation, as in `Trace.live`; 0 for a block
    older than the recording), collection (seq of the collection's event).
    """
    collections = _Collections(trace, within)
    addresses = collections.freed_addresses(trace, within)
    parts = [
        chunk[np.isin(chunk["address"], addresses)]
        for chunk in event_tables.iter_events(
            trace, until=within.end - 1, columns=_BLOCK_COLUMNS, kinds=("alloc", *FREES)
        )
        if len(addresses)
    ]
    if not parts:
        empty = {name: np.zeros(0, np.int64) for name in ("requested_bytes", "stack_id", "collection")}
        return Table({"seq": np.zeros(0, np.int64), "device": texts(()), **empty})
    events = pd.concat(parts, ignore_index=True).astype({"device": object, "kind": object})
    # At each address of a device in order: a free ends the block of the alloc before it, unless the free was requested
    # by the event before it.
    events = events.sort_values(["device", "address", "seq"], kind="stable", ignore_index=True)
    previous = events.shift()
    is_same_place = (events["device"] == previous["device"]) & (events["address"] == previous["address"])
    follows_alloc = (is_same_place & (previous["kind"] == "alloc")).to_numpy(bool)
    ends_block = events["kind"].isin(FREES) & ~(is_same_place & (previous["kind"] == "free_requested"))
    seq = events["seq"].to_numpy(np.int64)
    number = collections.find(seq, events["thread"].to_numpy(np.int64))
    allocated_at = np.where(follows_alloc, np.append(-1, seq[:-1]), -1)
    rows = ends_block.to_numpy(bool) & (number >= 0) & (seq >= within.first)
    rows &= allocated_at < collections.first_events[number]
    if device is not None:
        rows &= (events["device"] == device).to_numpy(bool)
    stacks = allocating_stacks(trace.stacks, events)
    table = Table(
        {
            "seq": seq,
            "device": events["device"].to_numpy(object),
            "requested_bytes": events["requested_bytes"].to_numpy(np.int64),
            "stack_id": np.where(follows_alloc, np.append(0, stacks[:-1]), 0),
            "collection": collections.ends[number],
        }
    ).take(rows)
    return table.take(np.argsort(table["seq"], kind="stable"))


class _Collections:
    """Recorded garbage collections. An interpreter runs one at a time, so they do not overlap."""

    def __init__(self, trace: RecordedTrace, within: Range) -> None:
        events = event_tables.events(
            trace,
            since=within.first - 1,
            columns=("seq", "address", "thread"),
            kinds=("garbage_collection",),
        ).sort_values("address", kind="stable")
        self.first_events = np.append(events["address"].to_numpy(np.int64), np.iinfo(np.int64).max)
        self.ends = np.append(events["seq"].to_numpy(np.int64), -1)
        self._threads = np.append(events["thread"].to_numpy(np.int64), -1)

    def find(self, seq: npt.NDArray[np.int64], thread: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the collection that each event belongs to, or -1."""
        number = np.searchsorted(self.first_events, seq, side="right") - 1
        is_within = (number >= 0) & (seq < self.ends[number]) & (thread == self._threads[number])
        return np.where(is_within, number, -1)

    def freed_addresses(self, trace: RecordedTrace, within: Range) -> npt.NDArray[np.int64]:
        """Return the addresses at which the collections freed something within a range."""
        if len(self.ends) == 1:
            return np.zeros(0, np.int64)
        chunks = event_tables.iter_events(
            trace,
            since=within.first - 1,
            until=within.end - 1,
            columns=("seq", "address", "thread"),
            kinds=FREES,
        )
        addresses = [
            chunk["address"].to_numpy(np.int64)[
                self.find(chunk["seq"].to_numpy(np.int64), chunk["thread"].to_numpy(np.int64)) >= 0
            ]
            for chunk in chunks
        ]
        return np.unique(np.concatenate(addresses)) if addresses else np.zeros(0, np.int64)
