"""Base class of the commands that read traces, and the query that a command answers."""

from __future__ import annotations

import argparse
import enum
import os
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

_CHARACTERS_PER_WRITE = 1 << 20
_HELP_WIDTH = 79


class Exit(enum.IntEnum):
    OK = 0
    FOUND = 1
    """A fault (`verify`), a leak (`leaks --fail`), bytes above `--fail-above`, or no fit (`peak --fits`)."""
    BAD_INPUT = command.BAD_INPUT
    UNKNOWN = 3
    """--fail, --fail-above or --fits cannot be decided: the trace is too short or incomplete."""
    INTERRUPTED = command.INTERRUPTED
    BROKEN_PIPE = command.BROKEN_PIPE


class Query:
    """One call of a command: traces, options and output."""

    def __init__(self, traces: Sequence[RecordedTrace], options: argparse.Namespace, screen: Screen) -> None:
        self.traces = traces
        self.options = options
        self.screen = screen
        self.data = ""
        """Output as JSON, CSV, Markdown, or in brief."""

    @property
    def trace(self) -> RecordedTrace:
        return self.traces[0]

    @property
    def frames(self) -> Frames | None:
        """Function that returns the frames of a stack, or None without --all-frames."""
        return frames_of(self.trace) if self.options.all_frames else None

    @property
    def names(self) -> SiteNames:
        """Names of lines of code in the text, for one run or two."""
        earlier, later = self.traces[0].working_directory, self.traces[-1].working_directory
        return SiteNames(later, self.frames, earlier_directory=earlier)

    @property
    def by(self) -> str:
        """Grouping of the rows: "module:3" with --depth 3."""
        by: str = self.options.by
        return by if self.options.depth is None else f"{by}:{self.options.depth}"

    @property
    def is_whole_run(self) -> bool:
        return self.options.since is None and self.options.until is None and self.options.region is None

    @property
    def ranges(self) -> list[tuple[Position | None, Position | None]]:
        """Positions of --since and --until, or of each region of --in, in order. Nested regions are left out."""
        if self.options.region is None:
            return [(self.options.since, self.options.until)]
        regions = self.trace.positions.stretches_named(self.options.region)
        names = [f"region:{region.name}#{region.number}" for region in regions]
        return [(name, f"{name}:end") for name in names]

    def span(self, at: Position | None = None) -> Span:
        """Return the ranges as text, with `at` in place of a missing --until."""
        ranges, region = self.ranges, self.options.region
        (since, _), (_, until) = ranges[0], ranges[-1]
        until = next((position for position in (until, at) if position is not None), "end")
        regions = f"all {len(ranges):,} regions {region!r}" if len(ranges) > 1 else ""
        return Span(None if since is None else str(since), str(until), regions)

    def rows(self, default: int) -> int:
        """Return the number of rows: --top, or `default` in text, or all in JSON and CSV."""
        if self.options.top is not None:
            return int(self.options.top)
        is_data = self.options.json or self.options.csv
        return ALL_ROWS if is_data or not default else default

    def target_path(self, default: Path) -> Path:
        """Return the file to write. Raises ReportError if it exists without --overwrite, or its folder is missing."""
        target = Path(self.options.output) if self.options.output else default
        if not target.parent.is_dir():
            raise ReportError(f"{target.parent} is not a folder: give another path with -o")
        if os.path.lexists(target) and not self.options.overwrite:
            raise ReportError(f"{target} exists already: give another path with -o, or --overwrite")
        return target

    def print_text(self, text: str) -> None:
        self.data += text

    def print_json(self, name: str, data: Any, *, indent: int | None = 1) -> None:
        """Print a table or plain values in the JSON format `name`, with frames if --all-frames is given."""
        self.data += document(name, data, self.frames, indent=indent)

    def print_csv(self, table: Table | pd.DataFrame) -> None:
        self.data += csv_text(table)


class TraceCommand(ABC):
    description: ClassVar[str]
    examples: ClassVar[Sequence[tuple[str, str]]]
    """Arguments after the program name, and their effect."""
    if_truncated: ClassVar[str] = "What came after the break is not in it."
    """Effect of a truncated trace on the answer, in a sentence."""
    traces: ClassVar[str] = "TRACE"
    """Positional arguments in the usage."""
    traces_help: ClassVar[str] = "the trace file"

    progress_label: ClassVar[str] = "adding up"
    """Text of the progress bar after the replay."""

    reads_events: ClassVar[bool] = True
    """False if the command opens the paths in the options itself: `Query.traces` is then empty."""

    @abstractmethod
    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments of this command. `CommandParser.add_common` adds those of all commands."""

    def complete_options(self, options: argparse.Namespace) -> None:  # noqa: B027  (most commands complete nothing)
        """Complete the options before `find_mistake` checks them."""

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        """Return a sentence on an invalid combination of options, or None."""
        if options.region is not None and (options.since, options.until) != (None, None):
            return "--in is a range already: omit --since and --until"
        if len(options.traces) > 1 and self.traces == TraceCommand.traces:
            return f"give one trace, not {options.traces[1]!r} too"
        if options.all_frames and options.csv:
            return "--all-frames does not fit into a table: use --json"
        if options.all_frames and options.by in ("role", "age", "phase"):
            return f"--all-frames shows the stacks of lines of code: omit --by {options.by}"
        if options.depth is not None and options.by != MODULE:
            return "--depth counts the parts of a module's name: it needs --by module"
        return None

    def shows_incomplete(self, options: argparse.Namespace) -> bool:
        """Return whether missing parts of the trace precede the answer."""
        return not (options.json or options.csv or options.markdown or options.brief)

    @abstractmethod
    def run(self, query: Query) -> Exit:
        """Print the answer and return the exit status. Raises AlloctraceError for bad input."""

    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        parser = CommandParser(prog=prog, description=textwrap.fill(self.description, _HELP_WIDTH))
        parser.usage = f"{prog} {self.traces} [options]"
        self.add_arguments(parser)
        parser.add_common(self.traces_help, self.traces if self.traces.isalpha() else "TRACE")
        examples = "\n".join(_format_example(*example) for example in self.examples)
        parser.epilog = f"{parser.notes}\nexamples:\n{examples}".lstrip()
        options, unknown = parser.parse_known_args(arguments)
        # argparse reports traces after an option as unknown. parse_intermixed_args would lose what follows "--".
        options.traces += [argument for argument in unknown if not argument.startswith("-")]
        for argument in options.traces:
            if argument in COMMANDS and not os.path.exists(argument):
                parser.error(f"the command comes first: {PROGRAM} {argument} ...")
        unrecognized = [argument for argument in unknown if argument.startswith("-")]
        if unrecognized:
            parser.error(f"unrecognized arguments: {' '.join(unrecognized)}")
        self.complete_options(options)
        mistake = self.find_mistake(options)
        if mistake is not None:
            parser.error(mistake)
        return options

    def execute(self, options: argparse.Namespace) -> Exit:
        console = Console()
        with SlowProgress(Console(stderr=True), self.progress_label) as progress:
            traces = _load_traces(options, progress) if self.reads_events else []
            query = Query(traces, options, Screen(console, options.width))
            # Integrity, effect on the answer, and the path if there are several traces.
            incomplete = [
                (trace.integrity, self.if_truncated, trace.path if len(query.traces) > 1 else "")
                for trace in query.traces
            ]
            # Captured and written at the end, so that a closed pipe (head) raises only there, inside `QuietPipe`.
            with console.capture() as captured:
                if self.shows_incomplete(options):
                    _write_incomplete_traces(incomplete, query.screen)
                status = self.run(query)
        if options.json or options.csv:
            # JSON and CSV have no place for warnings.
            _write_incomplete_traces(incomplete, Screen(Console(stderr=True), options.width))
        if options.markdown:
            from ..report.markdown import incomplete_markdown

            query.data = "".join(incomplete_markdown(*entry) for entry in incomplete) + query.data
        for trace in traces:
            write_recording_status(trace)
        text = without_controls(query.data) or captured.get()
        if hasattr(sys.stdout, "reconfigure"):
            # Source lines may contain characters that the terminal's encoding lacks.
            sys.stdout.reconfigure(errors="backslashreplace")
        # In parts: a single write would encode a second copy of the text, which may be hundreds of megabytes.
        for begin in range(0, len(text), _CHARACTERS_PER_WRITE):
            sys.stdout.write(text[begin : begin + _CHARACTERS_PER_WRITE])
        return status


def write_recording_status(trace: RecordedTrace) -> None:
    """Write to stderr that a recording is still running, or was killed, and the next command."""
    integrity = trace.integrity
    if integrity.ended:
        return
    if integrity.is_running:
        print(
            f"The program is still running: this is the trace so far. To watch it: {command.spelled()} live "
            f"{command.path_argument(trace.path)}",
            file=sys.stderr,
        )
    elif integrity.spool_read:
        finish = f"{command.spelled()} finish {command.path_argument(trace.path)}"
        print(
            f"The recording was killed; its last events were read from its spool. To merge it into the trace: {finish}",
            file=sys.stderr,
        )


def _write_incomplete_traces(incomplete: Sequence[tuple[Integrity, str, str]], screen: Screen) -> None:
    for integrity, if_truncated, name in incomplete:
        write_incomplete(integrity, if_truncated, screen, name)


def _format_example(arguments: str, effect: str) -> str:
    wrapped = textwrap.wrap(
        f"{PROGRAM} {arguments}", _HELP_WIDTH - 4, break_on_hyphens=False, subsequent_indent="        "
    )
    explained = textwrap.indent(textwrap.fill(effect, _HELP_WIDTH - 6), "      ")
    return "  " + " \\\n".join(wrapped) + "\n" + explained


def _load_traces(options: argparse.Namespace, progress: Progress) -> list[RecordedTrace]:
    spools = [options.spool, *[None] * (len(options.traces) - 1)]
    traces = [
        _load_trace(path, spool, options.user_path, progress, len(spools) > 1)
        for path, spool in zip(options.traces, spools, strict=True)
    ]
    for path in options.user_path:
        if not any(path in trace.user_paths for trace in traces):
            # Raises UserPathError, with suggestions.
            RecordedTrace(options.traces[0], spool=options.spool, user_paths=[path])
    all_devices = list(dict.fromkeys(device for trace in traces for device in trace.known_devices))
    if isinstance(options.device, str):
        options.device = named_device(options.device, all_devices)
    elif options.device:
        # A repeatable --device accepts "cuda" for all CUDA devices.
        options.device = [
            name
            for device in options.device
            for name in [match for match in all_devices if match.startswith(f"{device}:")]
            or [named_device(device, all_devices)]
        ]
    return traces


def _load_trace(
    path: str, spool: str | None, user_paths: Sequence[str], progress: Progress, has_others: bool
) -> RecordedTrace:
    """Open a trace. If there are others, ignore user paths that match none of its files."""
    try:
        return RecordedTrace(path, spool=spool, user_paths=user_paths, progress=progress)
    except UserPathError as error:
        if not has_others:
            raise
        return RecordedTrace(path, spool=spool, user_paths=[name for name in user_paths if name not in error.paths])
