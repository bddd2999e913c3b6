"""The command `live`."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
from typing import Any

from rich.console import Console
from rich.live import Live as Refreshed
from rich.text import Text

from ..analysis.summary import summarize
from ..errors import TraceError
from ..reading.following import Following, View, trace_of_process
from ..reading.integrity import is_being_recorded
from ..reading.recorded import RecordedTrace
from ..report.integrity import IN_DIAGNOSIS, write_incomplete
from ..report.live import GROWING, Rates, view_json, write_view
from ..report.screen import Screen
from ..report.verdict import write_verdict
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand, write_recording_status

_EVERY = 1.0
_LEAST = 0.1
_ROWS = 5


class Live(TraceCommand):
    working = "judging"
    description = (
        "Shows what a running program holds now, over time, and which lines hold ever more, until it ends or Ctrl-C; "
        "then the verdict, if it has ended. PID: of the program. Only its files are read: it is not disturbed. In a "
        "pipe it prints once."
    )
    examples = (
        ("live run.alloctrace", "watch it; if it has ended, its verdict"),
        ("live run.alloctrace --once", "print once, and exit"),
    )
    if_cut = IN_DIAGNOSIS
    traces = "TRACE|PID"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="print once, and exit")
        parser.add_argument(
            "--every",
            type=_seconds,
            default=_EVERY,
            metavar="SECONDS",
            help=f"seconds between two readings (default: {_EVERY:g})",
        )
        parser.add_top(GROWING, "lines that grow")
        parser.add_user_path()

    def mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 1:
            return f"give one trace, not {options.traces[1]!r} too"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        name = options.traces[0]
        path = trace_of_process(int(name)) if name.isdecimal() and not os.path.exists(name) else name
        if not os.path.exists(path):
            raise TraceError(f"cannot open {path}: No such file or directory")
        running = _runs(path)
        if not running and not options.json:
            _judge(path, query)
            return Exit.OK
        followed = _Followed(path, query)
        if options.json:
            view, top = followed.look(), query.rows(0)
            header = followed.following.header
            query.print_json("live", view_json(view, followed.rates, path, header, running=running, top=top))
            return Exit.OK
        if options.once or not sys.stdout.isatty():
            followed.look()
            followed.write(query.screen)
            return Exit.OK
        if followed.watch():
            _judge(path, query)
        return Exit.OK


class _Followed:
    def __init__(self, path: str, query: Query) -> None:
        self.path = path
        self.following = Following(path, query.options.user_path)
        self.rates = Rates(0.0, 0.0)
        self._query = query
        self._view: View | None = None
        self._first: View | None = None

    def look(self) -> View:
        view = self.following.advance()
        if self._view is None:
            spool = self._query.options.spool or self.following.header.get("spool")
            self.following.read_spool_at(spool if isinstance(spool, str) else f"{self.path}.spool")
            view = self.following.advance()
        before = self._view
        if before is None or view.seen.end_ns > before.seen.end_ns:
            self.rates = Rates.between(before, view)
        elif before is not None:
            self.rates = Rates(0.0, 0.0)
        self._view = view
        return view

    def write(self, screen: Screen) -> None:
        assert self._view is not None
        top = self._query.rows(GROWING)
        write_view(self._view, self.rates, self.path, self.following.header, screen, top)

    def watch(self) -> bool:
        """Looks again and again; whether the recording has ended, which Ctrl-C does not wait for."""
        # Not the console of the query, whose text is printed at the end as a whole.
        console = Console()
        try:
            with Refreshed(console=console, screen=True, auto_refresh=False) as shown:
                while True:
                    runs = _runs(self.path)
                    self.look()
                    shown.update(self._drawn(console), refresh=True)
                    if not runs:
                        break
                    time.sleep(self._query.options.every)
        except KeyboardInterrupt:
            runs = True
        # The other screen is gone with what was on it.
        if self._view is not None and runs:
            self.write(self._query.screen)
        return not runs

    def _drawn(self, console: Console) -> Text:
        # A console of its own: what is printed to the other one goes above the view.
        drawn = io.StringIO()
        system: Any = console.color_system
        own = Console(file=drawn, force_terminal=True, color_system=system, width=console.width, legacy_windows=False)
        self.write(Screen(own, self._query.options.width))
        lines = drawn.getvalue().splitlines()
        return Text.from_ansi("\n".join(lines[: max(console.height - 1, 5)]))


def _runs(path: str) -> bool:
    """Whether it is being recorded; twice, since a file that takes the place of another is locked a moment later."""
    if is_being_recorded(path):
        return True
    time.sleep(_LEAST)
    return is_being_recorded(path)


def _judge(path: str, query: Query) -> None:
    """The verdict on a recording that has ended."""
    trace = RecordedTrace(path, spool=query.options.spool, user_paths=query.options.user_path)
    summary = summarize(trace, top=query.rows(_ROWS), devices=[])
    query.screen.text("The recording has ended. The verdict:", style="dim")
    query.screen.blank()
    write_incomplete(trace.integrity, IN_DIAGNOSIS, query.screen)
    write_verdict(summary, query.screen, None)
    write_recording_status(trace)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _LEAST <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: use {_LEAST:g} or more")
    return value
