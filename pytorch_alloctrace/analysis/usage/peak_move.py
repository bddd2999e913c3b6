"""Move of the peak between two runs: another line, or the backward of the line, allocates up to the peak."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...reading.names import ROLES
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site, describe_stacks
from .comparison import GONE, NEW, compare, has_position

_Place = tuple[str, str, int]
"""Filename, function and line."""


@dataclass(frozen=True)
class PeakAllocation:
    """Allocation that reaches the peak."""

    site: Site
    """Line that allocates, or whose backward does."""
    backward: bool
    """True if the backward of the line allocates."""

    @property
    def place(self) -> _Place:
        return self.site.filename, self.site.function, self.site.line


@dataclass(frozen=True)
class PeakMove:
    """Allocations that reach the peaks of two runs, and that differ."""

    before: PeakAllocation
    after: PeakAllocation
    equal_maxima: Mapping[int, int] = field(repr=False)
    """Maximum of the live bytes over the run, by row of the comparison of lines, if it is equal in both runs."""


def find_peak_move(
    trace_a: RecordedTrace, trace_b: RecordedTrace, device: str, lines: pd.DataFrame | None = None
) -> PeakMove | None:
    """Return the move of a device's peak; None if it did not move, or if this is unknown.

    lines: Comparison of the peaks by line, if it exists.
    """
    if not all(has_position(trace, "peak", device) for trace in (trace_a, trace_b)):
        return None
    before, after = (_find_peak_allocation(trace, device) for trace in (trace_a, trace_b))
    if before is None or after is None:
        return None
    table = compare(trace_a, trace_b, device=device) if lines is None else lines
    places_before, places_after = (
        [*zip(*(table[name] for name in names), strict=True)]
        for names in (("filename_before", "function_before", "line_before"), ("filename", "function", "line_after"))
    )
    pairs = [*zip(places_before, places_after, strict=True)]
    if before.backward == after.backward and (before.place, after.place) in pairs:
        return None
    maxima_before, maxima_after = (_find_maxima(trace, device) for trace in (trace_a, trace_b))
    equal_maxima = {
        row: maxima_before[pair[0]]
        for row, (match, pair) in enumerate(zip(table["match"], pairs, strict=True))
        if match not in (NEW, GONE) and maxima_before.get(pair[0], -1) == maxima_after.get(pair[1], -2)
    }
    return PeakMove(before, after, equal_maxima)


def _find_peak_allocation(trace: RecordedTrace, device: str) -> PeakAllocation | None:
    peak = trace.replay.peak("allocated", device)
    if peak is None:
        return None
    blocks = trace.replay.live(peak.seq + 1, device)
    rows = np.flatnonzero((blocks["alloc_seq"] == peak.seq) & ~blocks["older"])
    if len(rows) != 1:
        return None
    row = trace.stacks.describe(int(blocks["stack_id"][rows[0]]), "line")
    site = Site(row["filename"], row["line"], row["function"], row["source"], row["user"])
    return PeakAllocation(site, bool(blocks["backward"][rows[0]]))


def _find_maxima(trace: RecordedTrace, device: str) -> dict[_Place, int]:
    """Return the maximum of the live bytes of each line over the run; empty if events are missing or compacted."""
    if trace.integrity.compacted_until or not trace.covers_run:
        return {}
    stacks = np.arange(len(trace.stacks))
    _, first, line_of_stack = np.unique(trace.stacks.groups_of(stacks, "line"), return_index=True, return_inverse=True)
    end_ns = min(trace.end_ns + 1, sys.maxsize)  # a corrupt trace may end at the largest time
    timeline = trace.group_timelines(1, trace.begin_ns, end_ns, {device: line_of_stack}, len(first) + 1)[device]
    names = describe_stacks(trace.stacks, first, "line")
    places = zip(*(names[name].tolist() for name in ("filename", "function", "line")), strict=True)
    return dict(zip(places, timeline.highest[0, len(ROLES) :].tolist(), strict=False))
