"""Traces of a CUDA device made up event by event."""

from __future__ import annotations

from pathlib import Path

from core_probe import Events, Recorder, make_events

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.names import KINDS

MIB = 2**20
BEGIN = 0x7F0000000000
"""An address of the device."""
CUDA = 2
"""The location of the device, as core_probe defines it."""

Row = dict[str, int]


def event(kind: str, **fields: int) -> Row:
    return {"kind": KINDS.index(kind), "location": CUDA, "thread": 1, **fields}


def freed(address: int, size: int) -> list[Row]:
    """Return the two events of a free that waits for its stream."""
    return [event(kind, address=address, size=size) for kind in ("free_requested", "free_completed")]


def make_trace(path: Path, rows: list[Row]) -> alloctrace.Trace:
    """Write events, one a microsecond, and load the trace."""
    write_trace(path, make_events([{"time": 1000 * number, **row} for number, row in enumerate(rows)]))
    return alloctrace.load(path)


def write_trace(path: Path, events: Events, block_events: int = 1000) -> None:
    """Write a complete trace of the events, in blocks of at most block_events."""
    path.unlink(missing_ok=True)
    with Recorder(path) as recorder:
        for first in range(0, len(events), block_events):
            part = events[first : first + block_events]
            assert recorder.push(part) == len(part) and recorder.flush()
