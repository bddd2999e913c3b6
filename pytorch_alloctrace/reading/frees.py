"""Frees of blocks of the caching allocator, which are one event or two: `free_completed` alone where the block could be
used again at once, else `free_requested` first."""

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
        devices = events["device"].iloc[first_of_block].astype(str).to_numpy()
        for device in set(devices):
            rows = first_of_block[devices == device]
            blocks = trace.replay.blocks(int(events["seq"].iloc[0]), device)
            pending = blocks.loc[blocks["state"] == "active_pending_free", "address"]
            is_alone[rows] = ~events["address"].iloc[rows].isin(pending).to_numpy(bool)
    return is_alone


def in_two_events(trace: RecordedTrace, events: pd.DataFrame) -> pd.DataFrame:
    """The same with both events of each free, as torch reports them. What was one event has its number twice."""
    requests: Any = events[were_not_requested(trace, events)].assign(kind="free_requested")
    if requests.empty:
        return events
    both = pd.concat([requests, events.assign(kind=events["kind"].astype(str))], ignore_index=True)
    in_order: pd.DataFrame = both.sort_values("seq", kind="stable", ignore_index=True)
    return in_order
