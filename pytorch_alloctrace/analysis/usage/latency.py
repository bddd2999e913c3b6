"""Where the program waited for the allocator: calls that took long, by the stack that made them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...reading.recorded import RecordedTrace

LATENCY_COLUMNS = {"slow_calls": "sum", "slow_ns": "sum", "slowest_ns": "max"}
"""And how they are joined where several stacks are one place."""
_EVENTS = ("seq", "kind", "device", "address", "nbytes", "stack_id")


def slow_calls(trace: RecordedTrace, device: str | None, until: int | None, first: int = 0) -> pd.DataFrame:
    """One row a stack: stack_id, slow_calls, slow_ns (all together), slowest_ns (the longest one).

    Told are calls of over 10 microseconds and those that got segments from the driver (events of kind latency,
    docs/trace-format.md), of CUDA's allocators alone. What autograd's threads waited for has stack 0. One pass over the
    events, from `first` as far as the last such call.
    """
    left = trace.kind_counts.get("latency", 0)
    found = [pd.DataFrame({"stack_id": np.array([], dtype=np.int64), "ns": np.array([], dtype=np.int64)})]
    before: pd.DataFrame | None = None
    kinds = ("alloc", "oom", "latency")
    for frame in trace.iter_events(since=first, until=until, columns=_EVENTS, kinds=kinds) if left else ():
        told = frame[(frame["kind"] == "latency").to_numpy()]
        requests = frame[(frame["kind"] != "latency").to_numpy()]
        # The call that is told of may stand at the end of the frame before.
        known = requests if before is None else pd.concat([before.iloc[-1000:], requests])
        before = known
        left -= len(told)
        called = known.set_index("seq").reindex(told["address"].to_numpy(np.int64))
        own = called["stack_id"].notna().to_numpy() & (
            np.ones(len(called), dtype=bool) if device is None else (called["device"] == device).to_numpy()
        )
        stacks = called["stack_id"].to_numpy()[own].astype(np.int64)
        found.append(pd.DataFrame({"stack_id": stacks, "ns": told["nbytes"].to_numpy(np.int64)[own]}))
        if left <= 0:
            break
    groups = pd.concat(found).groupby("stack_id")["ns"]
    table = groups.agg(slow_calls="size", slow_ns="sum", slowest_ns="max").astype(np.int64)
    return table.reset_index()
