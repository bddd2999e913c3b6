"""Frees as torch reports them: two events each."""

from __future__ import annotations

import pandas as pd

PENDING_FREE = 2
"""node_seq of a state_block whose free waits for a stream."""


def in_two(events: pd.DataFrame) -> pd.DataFrame:
    """Return a trace's events, all from the first on; a CUDA block's completed free without a request is two rows."""
    kinds = events["kind"].astype(str)
    columns = (events[name] for name in ("device", "address", "node_seq"))
    requested: set[tuple[str, int]] = set()
    alone = []
    for kind, device, address, state in zip(kinds, *columns, strict=True):
        block = (device, int(address))
        is_completed = kind == "free_completed" and device.startswith("cuda")
        alone.append(is_completed and block not in requested)
        if kind == "free_requested" or (kind == "state_block" and state == PENDING_FREE):
            requested.add(block)
        elif is_completed or kind == "alloc":
            requested.discard(block)
    events = events.assign(kind=kinds)
    both = pd.concat([events[alone].assign(kind="free_requested"), events], ignore_index=True)
    return both.sort_values("seq", kind="stable", ignore_index=True)
