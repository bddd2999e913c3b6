"""Frees as torch reports them, in two events each."""

from __future__ import annotations

import pandas as pd

PENDING_FREE = 2
"""node_seq of a state_block whose free waits for a stream."""


def split_frees(events: pd.DataFrame) -> pd.DataFrame:
    """Split each CUDA free that was completed without a request. events: all events of a trace from the first."""
    kinds = events["kind"].astype(str)
    columns = (events[name] for name in ("device", "address", "node_seq"))
    requested: set[tuple[str, int]] = set()
    unrequested = []
    for kind, device, address, state in zip(kinds, *columns, strict=True):
        block = (device, int(address))
        is_completed = kind == "free_completed" and device.startswith("cuda")
        unrequested.append(is_completed and block not in requested)
        if kind == "free_requested" or (kind == "state_block" and state == PENDING_FREE):
            requested.add(block)
        elif is_completed or kind == "alloc":
            requested.discard(block)
    events = events.assign(kind=kinds)
    split = pd.concat([events[unrequested].assign(kind="free_requested"), events], ignore_index=True)
    return split.sort_values("seq", kind="stable", ignore_index=True)
