"""``python -m pytorch_alloctrace.analyze TRACE``: says what happened to the memory. Parses, calls, prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from ..analysis import summarize
from ..errors import AlloctraceError, TraceError
from ..report.as_json import verdict_json
from ..report.progress import SlowProgress
from ..report.screen import Screen
from ..report.text import write_verdict
from ..trace import load

PROGRAM = "python -m pytorch_alloctrace.analyze"
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As the shell reports a program that SIGINT or SIGPIPE ended."""


def parser() -> argparse.ArgumentParser:
    """The command line's options."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Says from a trace what happened to the memory: what leaks, what made the peak, what grows.",
        epilog="Sizes are those that the program asked for. Fields of --json: pydoc pytorch_alloctrace.report.as_json",
    )
    made.add_argument("trace", metavar="TRACE", help="a trace file, whole or damaged")
    made.add_argument("--json", action="store_true", help="print one JSON object, all sizes in bytes")
    made.add_argument(
        "--top", type=_count, default=5, metavar="N", help="lines of code in each table (default: 5; 0: all)"
    )
    made.add_argument(
        "--device", action="append", default=[], metavar="NAME", help='only this device, such as "cuda:0" (repeatable)'
    )
    made.add_argument(
        "--user-path",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder whose code counts as your own although it is installed (repeatable)",
    )
    made.add_argument(
        "--spool", metavar="PATH", help="the spool of a killed recording, if it was moved away from the trace"
    )
    made.add_argument(
        "--width", type=_count, metavar="COLUMNS", help="width of the text (default: the terminal's; 80 when piped)"
    )
    return made


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def analyze(options: argparse.Namespace) -> str:
    """What is to be printed. Raises AlloctraceError for bad input."""
    with SlowProgress(Console(stderr=True)) as progress:
        # Relative to here if it is here; a path of the machine where the trace was made is taken as it is.
        user_paths = [os.path.abspath(path) if os.path.exists(path) else path for path in options.user_path]
        trace = load(options.trace, spool=options.spool, user_paths=user_paths, progress=progress)
        unknown = [device for device in options.device if device not in trace.devices]
        if unknown:
            raise TraceError(f"the trace has no device {unknown[0]!r}: it has {', '.join(trace.devices) or 'none'}")
        summary = summarize(trace, top=options.top or sys.maxsize, devices=options.device)
    if options.json:
        return verdict_json(summary) + "\n"
    console = Console()
    # As a whole, so that a reader that goes away (head) is noticed in one place, here.
    with console.capture() as captured:
        write_verdict(summary, Screen(console, options.width))
    return captured.get()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 2 for bad input."""
    options = parser().parse_args(arguments)
    try:
        text = analyze(options)
        if hasattr(sys.stdout, "reconfigure"):
            # Source may hold what the terminal's encoding has not.
            sys.stdout.reconfigure(errors="backslashreplace")
        sys.stdout.write(text)
        sys.stdout.flush()
    except AlloctraceError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes once more at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return 0


if __name__ == "__main__":
    sys.exit(main())
