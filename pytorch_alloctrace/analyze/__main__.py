"""``python -m pytorch_alloctrace.analyze [VERB] TRACE``: says what happened to the memory. Parses, calls, prints."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from rich.console import Console

from ..analysis import summarize
from ..analysis.composition import COMPOSITION_BY
from ..errors import AlloctraceError, TraceError
from ..report.as_json import verdict_json
from ..report.progress import SlowProgress
from ..report.screen import Screen
from ..report.text import write_verdict
from ..sites import BY
from ..trace import Trace, load
from .inputs import byte_count, count, moment, positive
from .verbs import VERBS, show

PROGRAM = "python -m pytorch_alloctrace.analyze"
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""As the shell reports a program that SIGINT or SIGPIPE ended."""


def parser() -> argparse.ArgumentParser:
    """The command line's options."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [VERB] TRACE [OTHER] [options]",
        description="Says from a trace what happened to the memory: what leaks, what made the peak, what grows.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("verb", metavar="VERB", nargs="?", choices=[*VERBS, None], help="what to show (see below)")
    made.add_argument("trace", metavar="TRACE", help="a trace file, whole or damaged")
    made.add_argument("other", metavar="OTHER", nargs="?", help="of diff: the trace of the run after the change")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, all sizes in bytes")
    form.add_argument("--csv", action="store_true", help="print a table as CSV, all sizes in bytes (with a verb)")
    made.add_argument(
        "--top",
        type=count,
        metavar="N",
        help="lines in each table (default: 5, of peak and diff 10, of segments and blocks 20, of oom 3; 0: all)",
    )
    made.add_argument(
        "--at",
        type=moment,
        metavar="MOMENT",
        help="of segments, blocks, fragmentation, peak, diff of two traces, sites: end, peak, peak:reserved, an event "
        "number, step:N, mark:NAME, 12.5s (default: of peak and diff peak, else end)",
    )
    made.add_argument("--since", type=moment, metavar="MOMENT", help="of timeline: begin here; of diff: before")
    made.add_argument(
        "--until", type=moment, metavar="MOMENT", help="of timeline: end here; of diff: after (default: end)"
    )
    made.add_argument(
        "--by",
        choices=COMPOSITION_BY,
        help="of peak, diff, sites: rows are lines (default), stacks, functions, files; of peak and diff also phases "
        "of the step, ages",
    )
    made.add_argument(
        "--fail-above",
        type=byte_count,
        metavar="SIZE",
        help="of diff: exit status 1 if a device grew by more, such as 512MiB (0: at all)",
    )
    made.add_argument(
        "--points",
        type=positive,
        default=2000,
        metavar="N",
        help="of timeline: intervals in the whole trace (default: 2000)",
    )
    made.add_argument("--fail", action="store_true", help="of leaks: exit status 1 when there is one, for use in CI")
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
        "--width", type=count, metavar="COLUMNS", help="width of the text (default: the terminal's; 80 when piped)"
    )
    return made


def _epilog() -> str:
    verbs = "\n".join(f"  {name:14} {text}" for name, text in VERBS.items())
    return f"""verbs (without one: the verdict):
{verbs}

examples:
  {PROGRAM} run.alloctrace
  {PROGRAM} leaks run.alloctrace --fail
  {PROGRAM} peak run.alloctrace --by function
  {PROGRAM} diff before.alloctrace after.alloctrace --fail-above 64MiB
  {PROGRAM} diff run.alloctrace --since step:10 --until step:20
  {PROGRAM} sites run.alloctrace --csv > sites.csv
  {PROGRAM} segments run.alloctrace --at peak:reserved --device cuda:0
  {PROGRAM} blocks run.alloctrace --at step:12 --top 50
  {PROGRAM} timeline run.alloctrace --since step:10 --csv > timeline.csv
  {PROGRAM} fragmentation run.alloctrace --at peak:reserved
  {PROGRAM} oom run.alloctrace
  {PROGRAM} verify run.alloctrace

Sizes of the verdict are those that the program asked for. Fields of its --json: pydoc pytorch_alloctrace.report.as_json
"""


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
    summary = summarize(trace, top=top or sys.maxsize, devices=options.device)
    if options.json:
        return verdict_json(summary) + "\n", 0
    write_verdict(summary, screen)
    return "", 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 1 where `verify` or `leaks --fail` finds something or `diff`
    too much, 2 for bad input."""
    options = _parse(sys.argv[1:] if arguments is None else arguments)
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


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    made = parser()
    # Intermixed: with options between VERB and TRACE, plain parsing would take the verb for the trace.
    options = made.parse_intermixed_args(arguments)
    if options.csv and options.verb is None:
        made.error("--csv needs a verb: the verdict has no table")
    if len(options.device) > 1 and options.verb is not None:
        made.error("a verb shows one device, or all: give --device once")
    if options.fail and options.verb != "leaks":
        made.error("--fail belongs to leaks")
    if options.verb == "verify" and options.csv:
        made.error("verify has no table: use --json")
    _check_verb(made, options)
    if options.at is None:
        options.at = "peak" if options.verb in ("peak", "diff") else "end"
    return options


def _check_verb(made: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Of peak, diff and sites."""
    if options.other is not None and options.verb != "diff":
        made.error("only diff takes a second trace")
    if options.verb == "diff" and options.other is None and options.since is None:
        made.error("diff needs a second trace, or two moments of one: --since MOMENT [--until MOMENT]")
    if options.verb == "diff" and options.other is not None and (options.since, options.until) != (None, None):
        made.error("diff of two traces compares one moment of each: --at MOMENT")
    if options.fail_above is not None and options.verb != "diff":
        made.error("--fail-above is an option of diff")
    if options.by is not None and options.verb not in ("peak", "diff", "sites"):
        made.error("--by is an option of peak, diff and sites")
    if options.verb == "sites" and options.by not in (None, *BY):
        made.error(f"sites are by {', '.join(BY)}")


if __name__ == "__main__":
    sys.exit(main())
