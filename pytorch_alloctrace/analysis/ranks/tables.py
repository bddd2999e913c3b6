"""The ranks of a run as a table."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .comparison import Comparison
from .rank_summary import RankSummary

_TYPES = {
    "rank": "Int64",
    "host": "object",
    "device": "object",
    "peak_bytes": "Int64",
    "reserved_bytes": "Int64",
    "live_bytes": "Int64",
    "leak_bytes_per_unit": "float64",
    "leak_unit": "object",
    "leak_filename": "object",
    "leak_line": "Int64",
    "seconds_per_step": "Float64",
    "steps": "int64",
    "out_of_memory": "bool",
    "state": "object",
    "distance": "float64",
    "path": "object",
}
"""The columns, and what each holds."""


def ranks_table(comparison: Comparison, kind: str | None = None) -> pd.DataFrame:
    """See `Ranks.table`. kind: of device, as in `DeviceFigures.kind`; default the one that holds most."""
    rows = [_row(comparison, summary, kind or comparison.main) for summary in comparison.summaries]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def state_of(summary: RankSummary) -> str:
    """In a word or two; "complete" of a trace that is whole and was ended in good order."""
    if summary.is_running:
        return "running"
    return "killed" if summary.whole and summary.is_killed else summary.state


def _row(comparison: Comparison, summary: RankSummary, kind: str) -> dict[str, Any]:
    device = summary.of_kind(kind)
    leak = device.leaks[0] if device is not None and device.leaks else None

    def figure(name: str) -> Any:
        value = None if device is None else getattr(device, name)
        return pd.NA if value is None else value

    return {
        "rank": pd.NA if summary.rank is None else summary.rank,
        "host": summary.host,
        "device": "" if device is None else device.device,
        "peak_bytes": figure("peak"),
        "reserved_bytes": figure("reserved"),
        "live_bytes": figure("live"),
        "leak_bytes_per_unit": 0.0 if device is None else device.leak_bytes_per_unit,
        "leak_unit": "" if device is None else device.leak_unit,
        "leak_filename": "" if leak is None else leak.site.filename,
        "leak_line": pd.NA if leak is None else leak.site.line,
        "seconds_per_step": figure("seconds_per_step"),
        "steps": summary.steps,
        "out_of_memory": any(one.refused is not None for one in summary.devices),
        "state": state_of(summary),
        "distance": comparison.distances.get(summary.path, 0.0),
        "path": summary.path,
    }
