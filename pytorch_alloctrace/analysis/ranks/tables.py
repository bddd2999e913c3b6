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


def ranks_table(comparison: Comparison, kind: str | None = None) -> pd.DataFrame:
    """Return the table of `Ranks.table`. kind: as in `DeviceFigures.kind`; default `Comparison.main`."""
    rows = [_create_row(comparison, summary, kind or comparison.main) for summary in comparison.summaries]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def state_of(summary: RankSummary) -> str:
    """Return the state of a trace: "running", "killed" if complete but not ended regularly, else `Integrity.state`."""
    if summary.is_running:
        return "running"
    return "killed" if summary.is_complete and summary.is_killed else summary.state


def _create_row(comparison: Comparison, summary: RankSummary, kind: str) -> dict[str, Any]:
    device = summary.of_kind(kind)
    leak = device.leaks[0] if device is not None and device.leaks else None

    def read_figure(name: str) -> Any:
        value = None if device is None else getattr(device, name)
        return pd.NA if value is None else value

    return {
        "rank": pd.NA if summary.rank is None else summary.rank,
        "host": summary.host,
        "device": "" if device is None else device.device,
        "peak_bytes": read_figure("peak"),
        "reserved_bytes": read_figure("reserved"),
        "live_bytes": read_figure("live"),
        "leak_bytes_per_unit": 0.0 if device is None else device.leak_bytes_per_unit,
        "leak_unit": "" if device is None else device.leak_unit,
        "leak_filename": "" if leak is None else leak.site.filename,
        "leak_line": pd.NA if leak is None else leak.site.line,
        "seconds_per_step": read_figure("seconds_per_step"),
        "steps": summary.steps,
        "out_of_memory": any(figures.refused is not None for figures in summary.devices),
        "state": state_of(summary),
        "distance": comparison.distances.get(summary.path, 0.0),
        "path": summary.path,
    }
