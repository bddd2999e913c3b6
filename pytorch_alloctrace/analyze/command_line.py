"""Reads the command line, runs the verb, prints what it says.

Of the verbs, and of what only some commands need, nothing is imported before it is known to be needed: see `verbs`.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console

from .. import __version__, command
from ..errors import AlloctraceError, TraceError, UserPathError
from ..reading.integrity import Integrity
from ..reading.kinds import named_device
from ..reading.recorded import Progress
from ..report.incomplete import write_incomplete
from ..report.progress import SlowProgress
from ..report.screen import Screen
from ..report.site_names import printable, without_controls
from ..trace import Trace
from .arguments import VerbParser
from .standing import say_how_it_stands
from .verb import Exit, Query, Verb
from .verbs import VERBS

PROGRAM = command.SCRIPT if command.spelled() == command.SCRIPT else f"python -m {command.MODULES[0]}"
"""How the help calls this program: as short as it is installed here."""
DEFAULT = "diagnose"
"""The verb of a command that names none,"""
OF_SEVERAL = "ranks"
"""and where it names a folder or several traces."""
_WRITTEN_AT_ONCE = 1 << 20
"""Characters."""
_LINE = 79
_EXAMPLES = f"""\
  {PROGRAM} run train.py
  {PROGRAM} run.alloctrace
  {PROGRAM} leaks run.alloctrace --fail
  {PROGRAM} diff before.alloctrace after.alloctrace
"""


def main(arguments: Sequence[str]) -> int:
    """Runs a command; returns its exit status. Raises SystemExit where argparse ends it, or a pipe is closed."""
    with command.quiet_pipe():
        try:
            verb, options = parse(arguments)
            text, status = _run(verb, options)
        except AlloctraceError as error:
            print(f"{PROGRAM}: error: {printable(str(error))}", file=sys.stderr)
            return Exit.BAD_INPUT
        except KeyboardInterrupt:
            command.say_interrupted()
            return Exit.INTERRUPTED
        if hasattr(sys.stdout, "reconfigure"):
            # Source may hold what the terminal's encoding does not have.
            sys.stdout.reconfigure(errors="backslashreplace")
        # In parts: encoded at once, a table of hundreds of megabytes would be there twice.
        for begin in range(0, len(text), _WRITTEN_AT_ONCE):
            sys.stdout.write(text[begin : begin + _WRITTEN_AT_ONCE])
        return status


def parse(arguments: Sequence[str]) -> tuple[Verb, argparse.Namespace]:
    """The verb, and its options. Exits where they are wrong (Exit.BAD_INPUT), or where help is asked for."""
    if not arguments:
        make_parser().error("name a trace")
    name, rest = _verb_first(arguments)
    general = [word for word in arguments if word in ("-h", "--help", "--version")]
    if name is None and general:
        make_parser().parse_args(general)
    verb = VERBS[name or (OF_SEVERAL if _are_several(rest) else DEFAULT)]
    own = parser_of(verb)
    options, unknown = own.parse_known_args(rest)
    option = next((word for word in unknown if word.startswith("-")), None)
    if option is not None:
        own.error(_not_taken(option.partition("=")[0], verb.name))
    # What follows an option argparse does not join to the traces before it.
    options.traces += unknown
    if "run" in options.traces and not os.path.exists("run"):
        own.error(f"`run`, which records a program, comes first: {PROGRAM} run SCRIPT [arguments]")
    if name is None and options.traces[0].isidentifier() and not os.path.exists(options.traces[0]):
        raise TraceError(f"{options.traces[0]!r} is neither a trace nor a verb ({', '.join(VERBS)})")
    verb.settle(options)
    mistake = verb.mistake(options)
    if mistake is not None:
        own.error(mistake)
    return verb, options


def make_parser() -> argparse.ArgumentParser:
    """The parser of a command without a verb, whose help lists the verbs."""
    summaries = {
        "run": "record a program, unchanged, into a trace file",
        "build": "build the recorder for this torch before its first use",
        "cost": "measure what recording costs on this machine",
    }
    summaries |= {name: verb.summary for name, verb in VERBS.items()}
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="%(prog)s [VERB] TRACE [options]\n       %(prog)s FOLDER [options]\n"
        "       %(prog)s run [options] SCRIPT [arguments]",
        description="Records the memory of a PyTorch program, and says from the trace what happened:\n"
        "what leaks, what made the peak, what grows.",
        epilog=f"examples:\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pytorch_alloctrace {__version__}")
    parser.add_argument_group(
        "verbs (VERB --help shows the options of each)",
        "\n".join(f"{name:15}{summary}" for name, summary in summaries.items()),
    )
    return parser


@functools.cache
def parser_of(verb: Verb) -> VerbParser:
    """The parser of a verb."""
    parser = VerbParser(prog=f"{PROGRAM} {verb.name}", description=textwrap.fill(verb.description, _LINE))
    parser.usage = f"{PROGRAM} {f'[{DEFAULT}]' if verb.name == DEFAULT else verb.name} {verb.traces} [options]"
    verb.add_arguments(parser)
    parser.add_common(verb.traces_help)
    examples = "\n".join(_example(*example) for example in verb.examples)
    parser.epilog = f"{parser.notes}\nexamples:\n{examples}".lstrip()
    return parser


def _example(arguments: str, shows: str) -> str:
    command = textwrap.wrap(f"{PROGRAM} {arguments}", _LINE - 4, break_on_hyphens=False, subsequent_indent="        ")
    explained = textwrap.indent(textwrap.fill(shows, _LINE - 6), "      ")
    return "  " + " \\\n".join(command) + "\n" + explained


def _are_several(words: Sequence[str]) -> bool:
    """Whether a command without a verb names a folder, or several traces."""
    named = [
        word
        for number, word in enumerate(words)
        if not word.startswith("-") and (number == 0 or not _takes_value(words[number - 1]))
    ]
    return len(named) > 1 or any(word.endswith(os.sep) or os.path.isdir(word) for word in named)


def _takes_value(word: str) -> bool:
    """Whether it is an option that is followed by a value. The first verb that has it decides: all agree."""
    if not word.startswith("-") or "=" in word:
        return False
    actions = (parser_of(verb)._option_string_actions.get(word) for verb in VERBS.values())
    return next((action.nargs is None for action in actions if action is not None), False)


def _verb_first(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The verb, wherever it stands, and what is left. None: the command names none."""
    for number, word in enumerate(arguments):
        # In `--at peak` it is a position.
        if word in VERBS and (number == 0 or not _takes_value(arguments[number - 1])):
            return word, [*arguments[:number], *arguments[number + 1 :]]
    return None, list(arguments)


def _not_taken(option: str, verb: str) -> str:
    """That a verb does not take an option, and which verbs do, in a sentence."""
    takers = [name for name, other in VERBS.items() if option in parser_of(other)._option_string_actions]
    if not takers:
        return f"there is no option {option}"
    *most, last = takers
    said = f"{', '.join(most)} and {last} do" if most else f"only {last} does"
    return f"{verb} does not take {option}: {said}"


def _run(verb: Verb, options: argparse.Namespace) -> tuple[str, Exit]:
    """What is to be printed, and the exit status. Raises AlloctraceError for bad input."""
    console = Console()
    with SlowProgress(Console(stderr=True), verb.working) as progress:
        traces = _load(options, progress) if verb.reads_events else []
        query = Query(traces, options, Screen(console, options.width))
        # As a whole, so that a reader that goes away (head) is noticed in one place, in main.
        with console.capture() as captured:
            if not (options.json or options.csv or options.markdown):
                _say_incomplete(query, verb, query.screen)
            status = verb.run(query)
    if options.json or options.csv:
        # The data have no room for it.
        _say_incomplete(query, verb, Screen(Console(stderr=True), options.width))
    if options.markdown:
        from ..report.markdown import incomplete_markdown

        query.data = "".join(incomplete_markdown(*said) for said in _incomplete(query, verb)) + query.data
    for trace in traces:
        say_how_it_stands(trace)
    return without_controls(query.data) or captured.get(), status


def _say_incomplete(query: Query, verb: Verb, screen: Screen) -> None:
    for integrity, if_cut, name in _incomplete(query, verb):
        write_incomplete(integrity, if_cut, screen, name)


def _incomplete(query: Query, verb: Verb) -> list[tuple[Integrity, str, str]]:
    """What each trace lacks, what this does to the answer, and the name of the trace where there are two."""
    return [(trace.integrity, verb.if_cut, trace.path if len(query.traces) > 1 else "") for trace in query.traces]


def _load(options: argparse.Namespace, progress: Progress) -> list[Trace]:
    spools = [options.spool, *[None] * (len(options.traces) - 1)]
    traces = [
        _load_one(path, spool, options.user_path, progress, len(spools) > 1)
        for path, spool in zip(options.traces, spools, strict=True)
    ]
    for path in options.user_path:
        if not any(path in trace.user_paths for trace in traces):
            Trace(options.traces[0], spool=options.spool, user_paths=[path])  # says what there is instead
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
) -> Trace:
    """A trace; one of several need not have all of the user paths."""
    try:
        return Trace(path, spool=spool, user_paths=user_paths, progress=progress)
    except UserPathError as error:
        if not is_one_of_several:
            raise
        return Trace(path, spool=spool, user_paths=[name for name in user_paths if name not in error.paths])
