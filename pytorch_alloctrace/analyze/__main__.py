"""``python -m pytorch_alloctrace.analyze [VERB] TRACE``: says what happened to the memory. Parses, calls, prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from ..analysis import summarize
from ..errors import AlloctraceError, TraceError
from ..report.progress import SlowProgress
from ..report.screen import Screen
from ..report.verdict import verdict_json, write_verdict
from ..trace import Trace, load
from .forms import whole_stacks
from .options import PROGRAM, parse
from .verbs import show

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As the shell reports a program that SIGINT or SIGPIPE ended."""


def analyze(options: argparse.Namespace) -> tuple[str, int]:
    """What is to be printed, and the exit status. Raises AlloctraceError for bad input."""
    with SlowProgress(Console(stderr=True)) as progress:
        # Relative to here if it is here; a path of the machine where the trace was made is taken as it is.
        user_paths = [os.path.abspath(path) if os.path.exists(path) else path for path in options.user_path]
        trace = load(options.trace, spool=options.spool, user_paths=user_paths, progress=progress)
        known = trace.devices
        if options.other is not None:
            options.other = load(options.other, user_paths=user_paths, progress=progress)
            known = list(dict.fromkeys([*known, *options.other.devices]))
        unknown = [device for device in options.device if device not in known]
        if unknown:
            raise TraceError(f"the trace has no device {unknown[0]!r}: it has {', '.join(known) or 'none'}")
        console = Console()
        # As a whole, so that a reader that goes away (head) is noticed in one place, here.
        with console.capture() as captured:
            data, status = show_verdict(trace, options, console)
    return data or captured.get(), status


def show_verdict(trace: Trace, options: argparse.Namespace, console: Console) -> tuple[str, int]:
    """As verbs.show, and for no verb."""
    screen = Screen(console, options.width)
    if options.verb is not None:
        return show(options.verb, trace, options, screen)
    top = 5 if options.top is None else options.top
    frames = whole_stacks(trace, options)
    summary = summarize(trace, top=top or sys.maxsize, devices=options.device)
    if options.json:
        return verdict_json(summary, frames) + "\n", 0
    write_verdict(summary, screen, frames)
    return "", 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 1 where `verify` or `leaks --fail` finds something or `diff`
    too much, 2 for bad input."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        text, status = analyze(options)
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
    return status


if __name__ == "__main__":
    sys.exit(main())
