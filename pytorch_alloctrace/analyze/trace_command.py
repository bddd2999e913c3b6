"""Base class of the commands that read traces, and the query that each of them answers."""

from __future__ import annotations

import argparse
import enum
import os
import shlex
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console

from .. import command
from ..errors import ReportError, UserPathError
from ..parser import COMMANDS, PROGRAM
from ..reading.integrity import Integrity
from ..reading.modules import MODULE
from ..reading.names import named_device
from ..reading.positions import Position
from ..reading.recorded import Progress, RecordedTrace
from ..reading.table import Table
from ..report.integrity import write_incomplete
from ..report.json_output import document
from ..report.progress import SlowProgress
from ..report.screen import Screen
from ..report.site_names import Frames, SiteNames, frames_of, without_controls
from ..report.tables import csv_text
from ..report.units import Span
from .arguments import ALL_ROWS, CommandParser

if TYPE_CHECKING:
    import pandas as pd

_WRITTEN_AT_ONCE = 1 << 20
"""Characters."""
_LINE = 79
"""Columns of the help."""


class Exit(enum.IntEnum):
    """The exit statuses of the command line."""

    OK = 0
    FOUND = 1
    """`verify` found a fault, `leaks --fail` a leak, `diff --fail-above` a device that grew too much."""
    BAD_INPUT = command.BAD_INPUT
    UNKNOWN = 3
    """With --fail or --fail-above: it cannot be judged, since the trace is too short or a part of it is missing."""
    INTERRUPTED = command.INTERRUPTED
    BROKEN_PIPE = command.BROKEN_PIPE


class Query:
    """One call of a command: the traces, the options, and where the output goes."""

    def __init__(self, traces: Sequence[RecordedTrace], options: argparse.Namespace, screen: Screen) -> None:
        self.traces = traces
        self.options = options
        self.screen = screen
        """Where the text goes."""
        self.data = ""
        """What was printed as JSON, CSV or Markdown."""

    @property
    def trace(self) -> RecordedTrace:
        """The trace of a command that takes one."""
        return self.traces[0]

    @property
    def frames(self) -> Frames | None:
        """The frames of a stack, where --all-frames asks for whole stacks."""
        return frames_of(self.trace) if self.options.all_frames else None

    @property
    def names(self) -> SiteNames:
        """What lines of code are called in the text."""
        # Two runs share the names of the later one.
        return SiteNames(self.traces[-1].working_directory, self.frames)

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

    def print_json(self, name: str, data: Any, *, indent: int | None = 1) -> None:
        """Print a table or plain values in the JSON format of a command: see `report.json_output`. With --all-frames
        whatever has a stack has its frames."""
        self.data += document(name, data, self.frames, indent=indent)

    def print_csv(self, table: Table | pd.DataFrame) -> None:
        """A table."""
        self.data += csv_text(table)


class TraceCommand(ABC):
    """A command on traces: its help, its arguments, and what it prints."""

    description: ClassVar[str]
    """In two sentences."""
    examples: ClassVar[Sequence[tuple[str, str]]]
    """What follows the name of the program, and what it shows."""
    if_cut: ClassVar[str] = "What came after the break is not in it."
    """Effect of a missing end of the trace on the answer, in a sentence."""
    traces: ClassVar[str] = "TRACE"
    """Positional arguments in the usage."""
    traces_help: ClassVar[str] = "the trace file"
    """Help of the positional arguments."""

    working: ClassVar[str] = "adding up"
    """What the progress bar shows after the replay."""

    reads_events: ClassVar[bool] = True
    """Whether `Query.traces` has the traces, opened. Otherwise the command reads their paths in the options."""

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of the command, but for those of all commands (`CommandParser.add_common`)."""

    def settle(self, options: argparse.Namespace) -> None:  # noqa: B027  (most commands have nothing to settle)
        """Complete the options, before `mistake` checks them."""

    def mistake(self, options: argparse.Namespace) -> str | None:
        """Return what is wrong with the combination of options, in a sentence, or None."""
        if options.region is not None and (options.since, options.until) != (None, None):
            return "--in is a range already: not --since and --until too"
        if len(options.traces) > 1 and self.traces == TraceCommand.traces:
            return f"give one trace, not {options.traces[1]!r} too"
        if options.all_frames and options.csv:
            return "--all-frames does not fit into a table: use --json"
        if options.all_frames and options.by in ("role", "age", "phase"):
            return f"--all-frames shows the stacks of lines of code: not --by {options.by}"
        if options.depth is not None and options.by != MODULE:
            return "--depth counts the parts of a module's name: it needs --by module"
        return None

    @abstractmethod
    def run(self, query: Query) -> Exit:
        """Print the answer. Raises AlloctraceError for bad input."""

    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options. Raises SystemExit for wrong options, and after the help."""
        parser = CommandParser(prog=prog, description=textwrap.fill(self.description, _LINE))
        parser.usage = f"{prog} {self.traces} [options]"
        self.add_arguments(parser)
        parser.add_common(self.traces_help)
        examples = "\n".join(_example(*example) for example in self.examples)
        parser.epilog = f"{parser.notes}\nexamples:\n{examples}".lstrip()
        options, unknown = parser.parse_known_args(arguments)
        # argparse does not join what follows an option to the traces before it. (Intermixed, it loses what follows --.)
        options.traces += [word for word in unknown if not word.startswith("-")]
        for word in options.traces:
            if word in COMMANDS and not os.path.exists(word):
                parser.error(f"the command comes first: {PROGRAM} {word} ...")
        unrecognized = [word for word in unknown if word.startswith("-")]
        if unrecognized:
            parser.error(f"unrecognized arguments: {' '.join(unrecognized)}")
        self.settle(options)
        mistake = self.mistake(options)
        if mistake is not None:
            parser.error(mistake)
        return options

    def execute(self, options: argparse.Namespace) -> Exit:
        """Run the command, print its output, and return the exit status. Raises AlloctraceError for bad input."""
        console = Console()
        with SlowProgress(Console(stderr=True), self.working) as progress:
            traces = _load(options, progress) if self.reads_events else []
            query = Query(traces, options, Screen(console, options.width))
            # What each trace lacks, what this does to the answer, and the name of the trace where there are two.
            incomplete = [
                (trace.integrity, self.if_cut, trace.path if len(query.traces) > 1 else "") for trace in query.traces
            ]
            # As a whole, so that a reader that goes away (head) is noticed in one place, in `quiet_pipe`.
            with console.capture() as captured:
                if not (options.json or options.csv or options.markdown):
                    _write_incomplete(incomplete, query.screen)
                status = self.run(query)
        if options.json or options.csv:
            # The data have no room for it.
            _write_incomplete(incomplete, Screen(Console(stderr=True), options.width))
        if options.markdown:
            from ..report.markdown import incomplete_markdown

            query.data = "".join(incomplete_markdown(*entry) for entry in incomplete) + query.data
        for trace in traces:
            write_recording_status(trace)
        text = without_controls(query.data) or captured.get()
        if hasattr(sys.stdout, "reconfigure"):
            # Source may hold what the terminal's encoding does not have.
            sys.stdout.reconfigure(errors="backslashreplace")
        # In parts: encoded at once, a table of hundreds of megabytes would be there twice.
        for begin in range(0, len(text), _WRITTEN_AT_ONCE):
            sys.stdout.write(text[begin : begin + _WRITTEN_AT_ONCE])
        return status


def write_recording_status(trace: RecordedTrace) -> None:
    """Write to stderr that a recording still runs, or was killed, and the command that helps."""
    integrity = trace.integrity
    if integrity.ended:
        return
    if integrity.is_running:
        print(
            f"The program still runs: this is what it had recorded. To watch it: {command.spelled()} live "
            f"{shlex.quote(trace.path)}",
            file=sys.stderr,
        )
    elif integrity.spool_read:
        finish = f"{command.spelled()} finish {shlex.quote(trace.path)}"
        print(
            f"The recording was killed; its last events were read from its spool. One whole file: {finish}",
            file=sys.stderr,
        )


def _write_incomplete(incomplete: Sequence[tuple[Integrity, str, str]], screen: Screen) -> None:
    for integrity, if_cut, name in incomplete:
        write_incomplete(integrity, if_cut, screen, name)


def _example(arguments: str, shows: str) -> str:
    wrapped = textwrap.wrap(f"{PROGRAM} {arguments}", _LINE - 4, break_on_hyphens=False, subsequent_indent="        ")
    explained = textwrap.indent(textwrap.fill(shows, _LINE - 6), "      ")
    return "  " + " \\\n".join(wrapped) + "\n" + explained


def _load(options: argparse.Namespace, progress: Progress) -> list[RecordedTrace]:
    spools = [options.spool, *[None] * (len(options.traces) - 1)]
    traces = [
        _load_one(path, spool, options.user_path, progress, len(spools) > 1)
        for path, spool in zip(options.traces, spools, strict=True)
    ]
    for path in options.user_path:
        if not any(path in trace.user_paths for trace in traces):
            RecordedTrace(options.traces[0], spool=options.spool, user_paths=[path])  # says what there is instead
    known = list(dict.fromkeys(device for trace in traces for device in trace.known_devices))
    if isinstance(options.device, str):
        options.device = named_device(options.device, known)
    elif options.device:
        # Where several may be shown, "cuda" is all that there are.
        options.device = [
            name
            for device in options.device
            for name in [one for one in known if one.startswith(f"{device}:")] or [named_device(device, known)]
        ]
    return traces


def _load_one(
    path: str, spool: str | None, user_paths: Sequence[str], progress: Progress, is_one_of_several: bool
) -> RecordedTrace:
    """A trace; one of several need not have all of the user paths."""
    try:
        return RecordedTrace(path, spool=spool, user_paths=user_paths, progress=progress)
    except UserPathError as error:
        if not is_one_of_several:
            raise
        return RecordedTrace(path, spool=spool, user_paths=[name for name in user_paths if name not in error.paths])
