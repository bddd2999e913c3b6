"""The leaks of a trace as a table: what `Trace.leaks` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from .leak import Leak
from .verdict import find_leaks

_TYPES = {
    "device": "object",
    "filename": "object",
    "line": "int64",
    "function": "object",
    "source": "object",
    "kind": "object",
    "rate": "float64",
    "unit": "object",
    "confidence": "float64",
    "bytes": "int64",
    "blocks": "int64",
    "bytes_at_end": "int64",
    "oldest_age": "float64",
    "forecast": "Float64",
    "stack_id": "int64",
    "sites": "object",
}
"""The columns, and what each holds."""


def leak_table(trace: RecordedTrace, devices: Sequence[str], within: Range | None = None) -> pd.DataFrame:
    """One row a leak of some devices: see `Trace.leaks`."""
    leaks = [leak for device in devices for leak in find_leaks(trace, device, within).leaks]
    leaks.sort(key=lambda leak: leak.weight, reverse=True)
    rows = [_row(trace, leak) for leak in leaks]
    return pd.DataFrame(rows, columns=list(_TYPES)).astype(_TYPES)


def _row(trace: RecordedTrace, leak: Leak) -> dict[str, Any]:
    return {
        "device": leak.device,
        "filename": leak.line.filename,
        "line": leak.line.line,
        "function": leak.line.function,
        "source": leak.line.source,
        "kind": leak.kind,
        "rate": leak.rate,
        "unit": leak.unit,
        "confidence": leak.confidence,
        "bytes": leak.bytes,
        "blocks": leak.blocks,
        "bytes_at_end": leak.bytes_at_end,
        "oldest_age": leak.oldest_age,
        "forecast": pd.NA if leak.forecast is None else leak.forecast,
        "stack_id": _stack(trace, leak),
        "sites": [
            {
                "filename": site.site.filename,
                "line": site.site.line,
                "function": site.site.function,
                "source": site.site.source,
                "rate": site.rate,
                "bytes": site.bytes,
                "blocks": site.blocks,
                "stack_id": site.stack_id,
            }
            for site in leak.sites
        ],
    }


def _stack(trace: RecordedTrace, leak: Leak) -> int:
    """Of the stacks of its sites the first that goes through the line to look at."""
    here = leak.line.filename, leak.line.line
    for site in leak.sites:
        if any((frame.filename, frame.line) == here for frame in trace.frames(site.stack_id)):
            return site.stack_id
    return leak.sites[0].stack_id
