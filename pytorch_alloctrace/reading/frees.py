"""Frees are one event or two: `free_completed` alone where the block could be used again at once, as nearly every block
can, else `free_requested` first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .recorded import RecordedTrace


def were_not_requested(trace: RecordedTrace, events: pd.DataFrame) -> NDArray[np.bool_]:
    """Which of the events are `free_completed` without a `free_requested` before it, and so stand for both. The events
    have the columns seq, device and address; of each device among them, none of kind alloc, free_requested or
    free_completed is missing in between."""
    kinds = events["kind"].astype(str)
    before = kinds.groupby([events["device"].astype(str), events["address"]]).shift()
    is_alone = ((kinds == "free_completed") & (before != "free_requested")).to_numpy(bool, copy=True)
    first_of_block = np.flatnonzero(is_alone & before.isna().to_numpy(bool))
    if len(first_of_block):
        is_free = events["kind"].isin(("free_requested", "free_completed"))
        first = int(events.loc[is_free, "seq"].iloc[0])
        devices = events["device"].iloc[first_of_block].astype(str).to_numpy()
        for device in _with_two(trace) & set(devices):
            rows = first_of_block[devices == device]
            blocks = trace.replay.blocks(first, device)
            pending = blocks.loc[blocks["state"] == "active_pending_free", "address"]
            is_alone[rows] = ~events["address"].iloc[rows].isin(pending).to_numpy(bool)
    return is_alone


def in_two_events(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    """The same with both events of each free of the caching allocator, as torch reports them. What was one event has
    its number twice."""
    is_alone = were_not_requested(trace, events) & events["device"].astype(str).isin(_with_two(trace)).to_numpy(bool)
    requests: Any = events[is_alone].assign(kind="free_requested")
    if requests.empty:
        return events
    both = pd.concat([requests, events.assign(kind=events["kind"].astype(str))], ignore_index=True)
    in_order: pd.DataFrame = both.sort_values("seq", kind="stable", ignore_index=True)
    return in_order


def _with_two(trace: RecordedTrace) -> set[str]:
    """The devices of the caching allocator: no other reports when a free is requested, nor segments."""
    return {name for name, timeline in trace.replay.devices.items() if timeline.reports_segments}
