"""The formats that a trace can be exported to, and what each has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...reading.positions import Position
from ...reading.recorded import RecordedTrace
from .memory_viz import memory_viz
from .perfetto import perfetto
from .stacks import collapsed, speedscope


@dataclass(frozen=True)
class Export:
    """What is exported: the state at a moment, or what happened in a stretch."""

    at: Position | None = None
    since: Position | None = None
    until: Position | None = None
    device: str | None = None


@dataclass(frozen=True)
class Format:
    """One format."""

    ending: str
    """Of the file, with its dot."""
    reader: str
    """What opens it."""
    has: str
    """What is in it, in a line."""
    make: Callable[[RecordedTrace, Export], bytes]


FORMATS: dict[str, Format] = {
    "speedscope": Format(
        ".speedscope.json",
        "https://www.speedscope.app",
        "what each stack holds, or allocated in a range",
        lambda trace, what: speedscope(trace, what.at, what.since, what.until, what.device),
    ),
    "collapsed": Format(
        ".collapsed.txt",
        "flamegraph.pl and other flame graph tools",
        "the same as text: a stack a line, and its bytes",
        lambda trace, what: collapsed(trace, what.at, what.since, what.until, what.device),
    ),
    "perfetto": Format(
        ".perfetto.json",
        "https://ui.perfetto.dev and chrome://tracing",
        "the memory over time, with steps, regions and marks",
        lambda trace, what: perfetto(trace, what.since, what.until, what.device),
    ),
    "memory-viz": Format(
        ".pickle",
        "https://pytorch.org/memory_viz",
        "segments, blocks and events, as _dump_snapshot writes",
        lambda trace, what: memory_viz(trace, what.at, what.since, what.until, what.device),
    ),
}
"""By name."""
