"""Commands `report` and `serve`: the HTML page of a run, written to a file or served to a browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..report import units
from ..report.page import report as page
from ..report.page.names import NAMES
from .arguments import CommandParser, parse_count
from .trace_command import Exit, Query, TraceCommand

_MAX_PORT = 65535


class Report(TraceCommand):
    description = (
        "Writes one HTML file with the diagnosis, the memory over time and at many snapshots, segments, fragmentation "
        "and leaks. It needs no network and can be sent to others."
    )
    examples = (
        ("report run.alloctrace --open", "write run.html next to the trace, and show it in the browser"),
        ("report run.alloctrace -o memory.html --redact", "without source, arguments, host and folders, to share"),
    )
    if_truncated = "What came after the break is not in the report."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_output(" (default: next to the trace, with the ending .html)")
        parser.add_argument("--open", action="store_true", help="open the page in the browser")
        parser.add_argument(
            "--redact",
            action="store_true",
            help="leave out source, arguments, host name and folders, for a report to share",
        )
        parser.add_argument(
            "--redact=names",
            action="store_const",
            const=NAMES,
            dest="redact",
            help="also replace the names of the program's files, functions, classes, variables, modules and marks",
        )
        parser.add_user_path()

    def run(self, query: Query) -> Exit:
        options = query.options
        target = query.target_path(Path(query.trace.path).with_suffix(".html"))
        report = page.Report(query.trace, redact=options.redact)
        written = report.open(target) if options.open else report.write(target)
        if options.json:
            query.print_json("report", {"path": str(written), "bytes": written.stat().st_size})
        else:
            query.screen.text(f"{written}: {units.size(written.stat().st_size)}")
            if options.redact is True:
                query.screen.text(page.STILL_NAMED)
        return Exit.OK


class Serve(TraceCommand):
    description = (
        "Serves the page of `report` to browsers on this machine until Ctrl-C. Its cursor moves to any event of a "
        "trace of any size. Only this machine can reach the page, by an address that cannot be guessed."
    )
    examples = (
        ("serve run.alloctrace --open", "show it in the browser"),
        ("serve run.alloctrace --port 8123", "on a port that an ssh tunnel leads to: ssh -L 8123:localhost:8123 HOST"),
    )
    if_truncated = "What came after the break is not in it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=parse_count, default=0, metavar="PORT", help="listen on this port (default: any)"
        )
        parser.add_argument("--open", action="store_true", help="open the page in the browser")
        parser.add_user_path()

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if options.port > _MAX_PORT:
            return f"a port is a number up to {_MAX_PORT}, not {options.port}"
        if options.json:
            return "serve runs until Ctrl-C and has nothing to print as JSON: leave out --json"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        # Imported here: `report` does not need a web server.
        import signal
        import threading
        import webbrowser

        from ..report.page.server import ReportServer

        server = ReportServer(query.trace, query.options.port)
        try:
            server.page  # noqa: B018  (built before the address is printed: errors end the command)
            # Printed immediately: a command's captured output appears only when the command ends.
            print(f"Serving {query.trace.path} until Ctrl-C: {server.address}", file=sys.stderr, flush=True)
            if query.options.open:
                # SIGTERM and SIGHUP end the server as Ctrl-C does. Without a handler the redirect file would remain.
                for signal_number in (signal.SIGTERM, signal.SIGHUP):
                    if signal.getsignal(signal_number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                        signal.signal(signal_number, signal.default_int_handler)
                # Not the address: every user of the machine could read the token on the browser's command line.
                redirect = server.write_redirect().as_uri()
                # On a thread: `webbrowser.open` may wait for the browser to end, which waits for the page.
                threading.Thread(target=webbrowser.open, args=(redirect,), daemon=True).start()
            server.serve()
        except KeyboardInterrupt:
            print("Stopped.", file=sys.stderr)
        finally:
            server.release_port()
        return Exit.OK
