"""Allocated and live bytes by role, in the run up to a position or in ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ...reading.names import ROLES, ROLES_SHOWN
from ...reading.positions import Position, Range
from ...reading.recorded import RecordedTrace
from ...reading.tables import no_rows
from .ranges import ranges_between

ROLE_TOTALS = ("role", "allocations", "total_bytes", "exact_bytes", "live_bytes", "live_blocks", "largest_bytes")
_SUMS = ("allocations", "total_bytes", "exact_bytes")


def role_totals(
    trace: RecordedTrace, *, device: str | None = None, since: Position | None = None, until: Position = "end"
) -> pd.DataFrame:
    """Return the allocations of each role in a range: see `Trace.usage` with `by="role"`."""
    if since is None:
        return role_totals_of_run(trace, until, device=device)
    return range_role_totals(trace, ranges_between(trace, [(since, until)], device=device), device=device)


def role_totals_of_run(trace: RecordedTrace, until: Position = "end", *, device: str | None = None) -> pd.DataFrame:
    """Return ROLE_TOTALS of the run up to a position; blocks older than the recording count only as live."""
    device = trace.named_device(device)
    run = Range(0, trace.first_event_after(until, device))
    return _select_used_roles(_sum_roles(trace, [run], device))


def range_role_totals(trace: RecordedTrace, ranges: Sequence[Range], *, device: str | None = None) -> pd.DataFrame:
    """Return ROLE_TOTALS of ordered, disjoint ranges together, live bytes at the end of the last range.

    live_bytes_change, one more column, is the growth of the live bytes within a range, summed over the ranges.
    """
    device = trace.named_device(device)
    table = _sum_roles(trace, ranges, device)
    change = pd.Series(0, index=table.index)
    for within in ranges:
        change += (
            _live_by_role(trace, within.end, device)["live_bytes"]
            - _live_by_role(trace, within.first, device)["live_bytes"]
        )
    return _select_used_roles(table.assign(live_bytes_change=change))


def _sum_roles(trace: RecordedTrace, ranges: Sequence[Range], device: str | None) -> pd.DataFrame:
    tables = [
        table.to_frame().assign(role=[*ROLES])
        for within in ranges
        for name, table in trace.replay.role_allocations(within.first, within.end).items()
        if device in (None, name)
    ]
    allocations = pd.concat(tables or [no_rows(("role", *_SUMS, "largest_bytes"))]).groupby("role", observed=True)
    table = _live_by_role(trace, ranges[-1].end, device)
    for name in _SUMS:
        table[name] = allocations[name].sum().reindex(table.index, fill_value=0).astype(np.int64)
    largest = allocations["largest_bytes"].max().fillna(0).reindex(table.index, fill_value=0).astype(np.int64)
    return table.assign(largest_bytes=largest)


def _live_by_role(trace: RecordedTrace, until: int, device: str | None) -> pd.DataFrame:
    totals = np.zeros((len(ROLES_SHOWN), 2), np.int64)
    for name in [device] if device else trace.replay.devices:
        for role, (size, _, blocks) in trace.replay.role_bytes(until, name).items():
            totals[ROLES_SHOWN.index(role)] += size, blocks
    return pd.DataFrame(totals, columns=["live_bytes", "live_blocks"], index=[*ROLES_SHOWN])


def _select_used_roles(table: pd.DataFrame) -> pd.DataFrame:
    table = table[(table != 0).any(axis=1)].rename_axis("role").reset_index()
    return table[[*ROLE_TOTALS, *(name for name in table.columns if name not in ROLE_TOTALS)]]
