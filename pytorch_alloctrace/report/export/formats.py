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
    opened_by: str
    """What reads it, in a sentence."""
    make: Callable[[RecordedTrace, Export], bytes]


FORMATS: dict[str, Format] = {
    "speedscope": Format(
        ".speedscope.json",
        "speedscope (https://www.speedscope.app) shows the calls that hold the memory",
        lambda trace, what: speedscope(trace, what.at, what.since, what.until, what.device),
    ),
    "collapsed": Format(
        ".collapsed.txt",
        "flamegraph.pl and most flame graph tools read it: a stack a line, and its bytes",
        lambda trace, what: collapsed(trace, what.at, what.since, what.until, what.device),
    ),
    "perfetto": Format(
        ".perfetto.json",
        "https://ui.perfetto.dev and chrome://tracing show the memory over time, with steps and marks",
        lambda trace, what: perfetto(trace, what.since, what.until, what.device),
    ),
    "memory-viz": Format(
        ".pickle",
        "https://pytorch.org/memory_viz and torch/cuda/_memory_viz.py read it, as what _dump_snapshot writes",
        lambda trace, what: memory_viz(trace, what.at, what.since, what.until, what.device),
    ),
}
"""By name."""
