"""What a verb of the command line is, and what it is given when it runs: it parses, calls and prints."""

from __future__ import annotations

import argparse
import enum
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from .. import command
from ..errors import ReportError
from ..reading.modules import MODULE
from ..reading.positions import Position
from ..report.screen import Screen
from ..report.site_names import SiteNames
from ..report.span import Span
from ..report.stacks import Frames, frames_of, with_frames
from ..report.tables import csv_text, records
from ..trace import Trace
from .arguments import ALL_ROWS, VerbParser


class Exit(enum.IntEnum):
    """The exit statuses of the command line."""

    OK = 0
    FOUND = 1
    """`verify` found a fault, `leaks --fail` a leak, `diff --fail-above` a device that grew too much."""
    BAD_INPUT = 2
    UNKNOWN = 3
    """With --fail or --fail-above: it cannot be judged, since the trace is too short or a part of it is missing."""
    INTERRUPTED = command.INTERRUPTED
    BROKEN_PIPE = command.BROKEN_PIPE


class Query:
    """One call of a verb: the traces, the options, and where the output goes."""

    def __init__(self, traces: Sequence[Trace], options: argparse.Namespace, screen: Screen) -> None:
        self.traces = traces
        self.options = options
        self.screen = screen
        """Where the text goes."""
        self.data = ""
        """What was printed as JSON, CSV or Markdown."""

    @property
    def trace(self) -> Trace:
        """The trace of a verb that takes one."""
        return self.traces[0]

    @property
    def frames(self) -> Frames | None:
        """The frames of a stack, where --all-frames asks for whole stacks."""
        return frames_of(self.trace) if self.options.all_frames else None

    @property
    def names(self) -> SiteNames:
        """What lines of code are called in the text."""
        # Two runs share the names of the later one.
        return SiteNames(str(self.traces[-1].header.get("working_directory", "")), self.frames)

    @property
    def by(self) -> str:
        """What the rows are, with the depth of modules."""
        by: str = self.options.by
        return by if self.options.depth is None else f"{by}:{self.options.depth}"

    @property
    def is_whole(self) -> bool:
        """Whether no range was asked for."""
        return self.options.since is None and self.options.until is None and self.options.region is None

    @property
    def ranges(self) -> list[tuple[Position | None, Position | None]]:
        """The positions of --since and --until, or those of each region that --in names, in order, none in another."""
        if self.options.region is None:
            return [(self.options.since, self.options.until)]
        regions = self.trace.positions.stretches_named(self.options.region)
        names = [f"region:{region.name}#{region.number}" for region in regions]
        return [(name, f"{name}:end") for name in names]

    def span(self, at: Position | None = None) -> Span:
        """The same in words. at: a position that was given instead of --until."""
        ranges, region = self.ranges, self.options.region
        (since, _), (_, until) = ranges[0], ranges[-1]
        until = next((position for position in (until, at) if position is not None), "end")
        regions = f"all {len(ranges):,} regions {region!r}" if len(ranges) > 1 else ""
        return Span(None if since is None else str(since), str(until), regions)

    def rows(self, default: int) -> int:
        """How many rows to show: what --top says; without it `default` in text, all in JSON and CSV."""
        if self.options.top is not None:
            return int(self.options.top)
        is_data = self.options.json or self.options.csv
        return ALL_ROWS if is_data or not default else default

    def target(self, default: Path) -> Path:
        """The file to write: -o, or this one. Raises ReportError if it exists, without --overwrite, or its folder does
        not."""
        target = Path(self.options.output) if self.options.output else default
        if not target.parent.is_dir():
            raise ReportError(f"{target.parent} is not a folder: give another path with -o")
        if os.path.lexists(target) and not self.options.overwrite:
            raise ReportError(f"{target} exists already: give another path with -o, or --overwrite")
        return target

    def print_text(self, text: str) -> None:
        """Text that is wrapped already, or must not be."""
        self.data += text

    def print_json(self, data: Any) -> None:
        """A table, or plain values; with --all-frames whatever has a stack has its frames."""
        if not isinstance(data, pd.DataFrame):
            self.data += json.dumps(with_frames(data, self.frames), indent=1) + "\n"
        elif self.frames is None:
            self.data += data.to_json(orient="records", indent=1) + "\n"
        else:
            self.data += json.dumps(with_frames(records(data), self.frames), indent=1) + "\n"

    def print_csv(self, table: pd.DataFrame) -> None:
        """A table."""
        self.data += csv_text(table)


class Verb(ABC):
    """A verb: what its help says, which arguments it takes, and what it does."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """In one line, for the list of verbs."""
    description: ClassVar[str]
    """In two sentences."""
    examples: ClassVar[Sequence[tuple[str, str]]]
    """What follows the name of the program, and what it shows."""
    if_cut: ClassVar[str] = "What came after the break is not in it."
    """What it does to the answer when the end of the trace is missing, in a sentence."""
    traces: ClassVar[str] = "TRACE"
    """What it reads, as the usage names it,"""
    traces_help: ClassVar[str] = "the trace file"
    """and as the help explains it."""

    working: ClassVar[str] = "adding up"
    """What it does with a trace that was replayed, as the progress bar says."""

    reads_events: ClassVar[bool] = True
    """Whether it is given the traces, opened; else it has their paths alone."""

    @abstractmethod
    def add_arguments(self, parser: VerbParser) -> None:
        """Adds what the verb takes besides what all verbs do (`VerbParser.add_common`)."""

    def settle(self, options: argparse.Namespace) -> None:  # noqa: B027  (most verbs have nothing to settle)
        """Completes the options, before `mistake` looks at them."""

    def mistake(self, options: argparse.Namespace) -> str | None:
        """What is wrong with the options taken together, in a sentence; None where nothing is."""
        if options.region is not None and (options.since, options.until) != (None, None):
            return "--in is a range already: not --since and --until too"
        if len(options.traces) > 1 and self.traces == Verb.traces:
            return f"{self.name} takes one trace, not {options.traces[1]!r} too"
        if options.all_frames and options.csv:
            return "--all-frames does not fit into a table: use --json"
        if options.all_frames and options.by in ("role", "age", "phase"):
            return f"--all-frames shows the stacks of lines of code: not --by {options.by}"
        if options.depth is not None and options.by != MODULE:
            return "--depth counts the parts of a module's name: it needs --by module"
        return None

    @abstractmethod
    def run(self, query: Query) -> Exit:
        """Prints what the verb shows. Raises AlloctraceError for bad input."""
