"""Command `live`: the memory of a running program."""

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
from ..report.first_screen import write_first_screen
from ..report.integrity import IN_DIAGNOSIS
from ..report.live import GROWING, Rates, view_json, write_view
from ..report.screen import Screen
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand, write_recording_status

_DEFAULT_INTERVAL_S = 1.0
_MIN_INTERVAL_S = 0.1
_MAX_INTERVAL_S = 86400
_ROWS = 5


class Live(TraceCommand):
    progress_label = "judging"
    description = (
        "Shows what a running program holds now and over time, and which lines grow, until it ends or Ctrl-C; then the "
        "verdict, if it has ended. PID is that of the program. Only the trace files are read, so the program is not "
        "disturbed. In a pipe, it prints once."
    )
    examples = (
        ("live run.alloctrace", "watch a program; if it has ended, its verdict"),
        ("live run.alloctrace --once", "print once and exit"),
    )
    if_truncated = IN_DIAGNOSIS
    traces = "TRACE|PID"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="print once and exit")
        parser.add_argument(
            "--every",
            type=_parse_interval,
            default=_DEFAULT_INTERVAL_S,
            metavar="SECONDS",
            help=f"seconds between two readings (default: {_DEFAULT_INTERVAL_S:g})",
        )
        parser.add_top(GROWING, "lines that grow")
        parser.add_user_path()

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 1:
            return f"give one trace, not {options.traces[1]!r} too"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        name = options.traces[0]
        path = trace_of_process(int(name)) if name.isdecimal() and not os.path.exists(name) else name
        if not os.path.exists(path):
            raise TraceError(f"cannot open {path}: No such file or directory")
        is_running = _is_recording(path)
        if not is_running and not options.json:
            _write_final_verdict(path, query)
            return Exit.OK
        monitor = _Monitor(path, query)
        if options.json:
            view, top = monitor.refresh(), query.rows(0)
            header = monitor.following.header
            query.print_json("live", view_json(view, monitor.rates, path, header, running=is_running, top=top))
            return Exit.OK
        if options.once or not sys.stdout.isatty():
            monitor.refresh()
            monitor.write(query.screen)
            return Exit.OK
        if monitor.watch():
            _write_final_verdict(path, query)
        return Exit.OK


class _Monitor:
    def __init__(self, path: str, query: Query) -> None:
        self.path = path
        self.following = Following(path, query.options.user_path)
        self.rates = Rates(0.0, 0.0)
        self._query = query
        self._view: View | None = None

    def refresh(self) -> View:
        view = self.following.advance()
        if self._view is None:
            spool = self._query.options.spool or self.following.header.get("spool")
            self.following.read_spool_at(spool if isinstance(spool, str) else f"{self.path}.spool")
            view = self.following.advance()
        before = self._view
        if before is None or view.seen.end_ns > before.seen.end_ns:
            self.rates = Rates.between(before, view)
        else:
            self.rates = Rates(0.0, 0.0)
        self._view = view
        return view

    def write(self, screen: Screen) -> None:
        assert self._view is not None
        top = self._query.rows(GROWING)
        write_view(self._view, self.rates, self.path, self.following.header, screen, top)

    def watch(self) -> bool:
        """Refresh the view until the recording ends or Ctrl-C. Return True if the recording has ended."""
        # The console of the query captures its output until the command ends.
        console = Console()
        try:
            with Refreshed(console=console, screen=True, auto_refresh=False) as display:
                while True:
                    is_running = _is_recording(self.path)
                    self.refresh()
                    display.update(self._render(console), refresh=True)
                    if not is_running:
                        break
                    time.sleep(self._query.options.every)
        except KeyboardInterrupt:
            is_running = True
        # Closing the alternate screen erased the view.
        if self._view is not None and is_running:
            self.write(self._query.screen)
        return not is_running

    def _render(self, console: Console) -> Text:
        # A separate console: text printed to `console` would appear above the view.
        buffer = io.StringIO()
        system: Any = console.color_system
        separate = Console(
            file=buffer, force_terminal=True, color_system=system, width=console.width, legacy_windows=False
        )
        self.write(Screen(separate, self._query.options.width))
        lines = buffer.getvalue().splitlines()
        return Text.from_ansi("\n".join(lines[: max(console.height - 1, 5)]))


def _is_recording(path: str) -> bool:
    """Return whether the trace is being recorded. Checked twice: compaction locks its new file a moment late."""
    if is_being_recorded(path):
        return True
    time.sleep(_MIN_INTERVAL_S)
    return is_being_recorded(path)


def _write_final_verdict(path: str, query: Query) -> None:
    trace = RecordedTrace(path, spool=query.options.spool, user_paths=query.options.user_path)
    summary = summarize(trace, top=query.rows(_ROWS), devices=[])
    query.screen.text("The recording has ended. The verdict:", style="dim")
    query.screen.blank()
    write_first_screen(summary, query.screen)
    write_recording_status(trace)


def _parse_interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not _MIN_INTERVAL_S <= value <= _MAX_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds: use {_MIN_INTERVAL_S:g} or more")
    return value
