"""The options of the command line: how they are read, which verb takes which, and the help of each verb."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..analysis.usage.composition import COMPOSITION_BY
from ..reading.positions import PEAKS
from ..reading.sites import BY
from .catalogue import ALWAYS, COMMON, DIAGNOSE, MOMENTS, VERBS, VERDICT, takers, verb_named
from .inputs import byte_count, count, moment, positive

PROGRAM = "python -m pytorch_alloctrace.analyze"
_FLAG: dict[str, Any] = {"action": "store_true"}
_REPEATABLE: dict[str, Any] = {"action": "append", "default": []}
_MOMENT: dict[str, Any] = {"type": moment, "metavar": "MOMENT"}
_OPTIONS: dict[str, dict[str, Any]] = {
    "at": _MOMENT,
    "since": _MOMENT,
    "until": _MOMENT,
    "by": {},
    "all-frames": _FLAG,
    "points": {"type": positive, "metavar": "N"},
    "fail": _FLAG,
    "fail-above": {"type": byte_count, "metavar": "SIZE"},
    "json": _FLAG,
    "csv": _FLAG,
    "top": {"type": count, "metavar": "N"},
    "device": {**_REPEATABLE, "metavar": "NAME"},
    "user-path": {**_REPEATABLE, "metavar": "PATH"},
    "spool": {"metavar": "PATH"},
    "width": {"type": count, "metavar": "COLUMNS"},
}
"""How each is read, in the order of the help."""
_LINE = 79


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, checked: a verb gets none that it does not take. Ends the program where they are wrong, or where
    help is asked for."""
    if not {"-h", "--help"}.isdisjoint(arguments):
        # The verb's, wherever it stands: of a command that is not complete, too.
        verb = next((word for word in arguments if word in (DIAGNOSE, *VERBS)), None)
        (general_parser() if verb is None else verb_parser(None if verb == DIAGNOSE else verb)).print_help()
        raise SystemExit(0)
    # Intermixed: with options between VERB and TRACE, plain parsing would take the verb for the trace.
    options = general_parser().parse_intermixed_args(arguments)
    options.verb = None if options.verb == DIAGNOSE else options.verb
    _check(verb_parser(options.verb), options)
    if options.at is None:
        options.at = "peak" if options.verb in ("peak", "diff") else "end"
    return options


def general_parser() -> argparse.ArgumentParser:
    """Reads the options of all verbs; its help has the verbs, and the options that nearly all take."""
    texts = {name: COMMON.get(name, argparse.SUPPRESS) for name in _OPTIONS}
    made = _parser(
        "%(prog)s [VERB] TRACE [options]\n       %(prog)s VERB --help",
        "Says from a trace what happened to the memory: what leaks, what made the peak, what grows.",
        texts,
        _epilog(),
    )
    hidden = argparse.SUPPRESS
    made.add_argument("verb", metavar="VERB", nargs="?", choices=[DIAGNOSE, *VERBS, None], help=hidden)
    made.add_argument("trace", metavar="TRACE", help=hidden)
    made.add_argument("other", metavar="OTHER", nargs="?", help=hidden)
    return made


def verb_parser(name: str | None) -> argparse.ArgumentParser:
    """Its help is that of one verb (None: of the verdict)."""
    verb = verb_named(name)
    texts = {**{option: COMMON[option] for option in ALWAYS}, **verb.options}
    usage = f"%(prog)s {name or f'[{DIAGNOSE}]'} {verb.traces} [options]"
    examples = "\n".join(_example(*example) for example in verb.examples)
    moments = f"a moment is:\n{MOMENTS}\n\n" if not verb.options.keys().isdisjoint(("at", "since", "until")) else ""
    by = BY if name == "sites" else COMPOSITION_BY
    return _parser(usage, textwrap.fill(verb.text, _LINE), texts, f"{moments}examples:\n{examples}", by)


def _parser(
    usage: str, description: str, texts: Mapping[str, str], epilog: str, by: Sequence[str] = COMPOSITION_BY
) -> argparse.ArgumentParser:
    """texts: of the options that it has, what each does. by: what --by can be."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = made.add_mutually_exclusive_group()
    for name, how in {**_OPTIONS, "by": {"choices": by}}.items():
        if name in texts:
            (form if name in ("json", "csv") else made).add_argument(f"--{name}", help=texts[name], **how)
    return made


def _example(arguments: str, shows: str) -> str:
    return f"  {PROGRAM} {arguments}\n{textwrap.indent(textwrap.fill(shows, _LINE - 6), '      ')}"


def _epilog() -> str:
    verbs = "\n".join(f"  {name:14}  {verb.line}" for name, verb in VERBS.items())
    examples = "\n".join(f"  {PROGRAM} {verb.examples[0][0]}" for verb in (VERDICT, *VERBS.values()))
    return f"""verbs (VERB --help says more of each):
  {DIAGNOSE:14}  {VERDICT.line}
{verbs}

a moment (--at, --since, --until) is:
{MOMENTS}

examples:
{examples}

Sizes of the verdict are those that the program asked for. Fields of its --json: pydoc pytorch_alloctrace.report.verdict
"""


def _check(usage: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program with a sentence where the verb cannot use what was given."""
    name, verb = options.verb, verb_named(options.verb)
    if options.csv and "csv" not in verb.options:
        no_table = f"{name} has no table: use --json"
        usage.error("--csv needs a verb: the verdict has no table" if name is None else no_table)
    for option in _OPTIONS:
        if option not in ALWAYS and option not in verb.options and _is_given(options, option):
            usage.error(f"--{option} belongs to {takers(option)}, not to {name or 'the verdict'}")
    if len(options.device) > 1 and name is not None:
        usage.error("a verb shows one device, or all: give --device once")
    if options.other is not None and name != "diff":
        usage.error("only diff takes a second trace")
    if options.all_frames and options.csv:
        usage.error("--all-frames has no place in a table: use --json")
    if options.all_frames and options.by in ("age", "phase"):
        usage.error(f"--all-frames shows the stacks of lines of code: not --by {options.by}")
    if name == "diff":
        _check_diff(usage, options)
    if name in ("peak", "sites") and (options.since, options.until) != (None, None):
        _check_stretch(usage, options)
    if name == "sites" and options.by not in (None, *BY):
        usage.error(f"sites are by {', '.join(BY)}")


def _check_diff(usage: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.other is None and options.since is None:
        usage.error("diff needs a second trace, or two moments of one: --since MOMENT [--until MOMENT]")
    if options.other is None and options.at is not None:
        usage.error("diff of one trace compares two moments of it: --since MOMENT [--until MOMENT], not --at")
    if options.other is not None and (options.since, options.until) != (None, None):
        usage.error("diff of two traces compares one moment of each: --at MOMENT")


def _check_stretch(usage: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.verb == "peak" and options.at not in (None, *PEAKS):
        usage.error(f"--since and --until look for a peak: --at peak or peak:reserved, not {options.at}")
    if options.verb == "sites" and options.at is not None:
        usage.error("--at is one moment, --since and --until are two: give either")


def _is_given(options: argparse.Namespace, option: str) -> bool:
    value = getattr(options, option.replace("-", "_"))
    # Event 0 is a moment, 0 a number of rows.
    return value is not None and value is not False and value != []
