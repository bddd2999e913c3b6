"""Synthetic traces of a CUDA device."""

from __future__ import annotations

from pathlib import Path

from core_probe import Events, Recorder, make_events

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.names import KINDS

MIB = 2**20
BEGIN = 0x7F0000000000
"""Lowest address of the device."""
CUDA = 2
"""Location number of the device in core_probe."""

Row = dict[str, int]


def event(kind: str, **fields: int) -> Row:
    return {"kind": KINDS.index(kind), "location": CUDA, "thread": 1, **fields}


def freed(address: int, size: int) -> list[Row]:
    """Return the two events of a free, requested and completed."""
    return [event(kind, address=address, size=size) for kind in ("free_requested", "free_completed")]


def make_trace(path: Path, rows: list[Row]) -> alloctrace.Trace:
    """Write the events, one per microsecond, and load the trace."""
    write_trace(path, make_events([{"time": 1000 * number, **row} for number, row in enumerate(rows)]))
    return alloctrace.load(path)


def write_trace(path: Path, events: Events, block_events: int = 1000) -> None:
    """Write a complete trace, with at most `block_events` events per block."""
    path.unlink(missing_ok=True)
    with Recorder(path) as recorder:
        for first in range(0, len(events), block_events):
            chunk = events[first : first + block_events]
            assert recorder.push(chunk) == len(chunk) and recorder.flush()
