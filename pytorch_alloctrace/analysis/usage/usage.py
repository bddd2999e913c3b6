"""Entry point of `Trace.usage` to the analyses by site, role, phase, age and call."""

from __future__ import annotations

import pandas as pd

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from ...reading.sites import groups_stacks
from .composition import COMPOSITION_BY, composition_at
from .lifetimes import site_lifetimes
from .role_totals import role_totals
from .tree import tree_at

USAGE_BY = (*COMPOSITION_BY, "call")


def usage(
    trace: RecordedTrace,
    at: Position | None,
    *,
    since: Position | None,
    until: Position | None,
    by: str,
    device: str | None,
) -> pd.DataFrame:
    """Implement `Trace.usage`."""
    if by not in USAGE_BY and not groups_stacks(by):
        raise ValueError(f"by={by!r} is not known: use one of {', '.join(USAGE_BY)}")
    if at is not None:
        if (since, until) != (None, None):
            raise ValueError("at= cannot be combined with since= or until=: give a position or a range")
        if by == "call":
            return tree_at(trace, at, device=device).to_frame()
        return composition_at(trace, at, device=device, by=by).to_frame()
    end: Position = "end" if until is None else until
    if by == "role":
        return role_totals(trace, device=device, since=since, until=end)
    if not groups_stacks(by):
        raise ValueError(f"by={by!r} needs a position: give at=, such as at='end'")
    return site_lifetimes(trace, device=device, by=by, since=since, until=end)
