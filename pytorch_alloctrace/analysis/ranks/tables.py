"""The ranks of a run as a table."""

from __future__ import annotations

from typing import Any

import pandas as pd

from .comparison import Comparison
from .rank_summary import Card

_TYPES = {
    "rank": "Int64",
    "host": "object",
    "device": "object",
    "peak_bytes": "Int64",
    "reserved_bytes": "Int64",
    "live_bytes": "Int64",
    "leak_rate": "float64",
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
    rows = [_row(comparison, card, kind or comparison.main) for card in comparison.cards]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def state_of(card: Card) -> str:
    """In a word or two; "complete" of a trace that is whole and was ended in good order."""
    if card.is_running:
        return "running"
    return "killed" if card.whole and card.is_killed else card.state


def _row(comparison: Comparison, card: Card, kind: str) -> dict[str, Any]:
    device = card.of_kind(kind)
    leak = device.leaks[0] if device is not None and device.leaks else None

    def figure(name: str) -> Any:
        value = None if device is None else getattr(device, name)
        return pd.NA if value is None else value

    return {
        "rank": pd.NA if card.rank is None else card.rank,
        "host": card.host,
        "device": "" if device is None else device.device,
        "peak_bytes": figure("peak"),
        "reserved_bytes": figure("reserved"),
        "live_bytes": figure("live"),
        "leak_rate": 0.0 if device is None else device.leak_rate,
        "leak_unit": "" if device is None else device.leak_unit,
        "leak_filename": "" if leak is None else leak.site.filename,
        "leak_line": pd.NA if leak is None else leak.site.line,
        "seconds_per_step": figure("seconds_per_step"),
        "steps": card.steps,
        "out_of_memory": any(one.refused is not None for one in card.devices),
        "state": state_of(card),
        "distance": comparison.distances.get(card.path, 0.0),
        "path": card.path,
    }
