"""Table of commands and parser of the command line. Imports only the module of the selected command."""

from __future__ import annotations

import argparse
import itertools
import os
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from . import __version__, command

PROGRAM = command.SCRIPT if command.spelled() == command.SCRIPT else f"python -m {command.MODULES[0]}"
"""Shortest spelling of the program on this machine, for help and errors."""
COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("recording.run:Run", "record an unmodified program into a trace file"),
    "build": ("recording.loading:Build", "build the recorder for this torch before its first use"),
    "cost": ("cost.command:Cost", "measure what recording costs on this machine"),
    "diagnose": ("analyze.diagnose:Diagnose", "(or no command) what is wrong, the peak, the end, the growth"),
    "leaks": ("analyze.leaks:Leaks", "what leaks, how fast, and the line to inspect"),
    "peak": ("analyze.peak:Peak", "what the peak memory consisted of"),
    "annotate": ("analyze.usage:Annotate", "a source file with the allocations of each line"),
    "diff": ("analyze.diff:Diff", "what changed between two runs, or two positions of one"),
    "ranks": ("analyze.ranks:Ranks", "(or a folder) which rank of a distributed run differs"),
    "sites": ("analyze.usage:Sites", "what each line allocates, and how long it lives"),
    "segments": ("analyze.memory:Segments", "the memory reserved by torch on each device, by segment"),
    "blocks": ("analyze.memory:Blocks", "the largest blocks, and the line that allocated each"),
    "holders": ("analyze.holders:Holders", "which objects of the program held the most memory"),
    "timeline": ("analyze.memory:Timeline", "requested, allocated, active, reserved bytes over time"),
    "fragmentation": (
        "analyze.memory:Fragmentation",
        "how the free memory is divided, and which blocks pin it",
    ),
    "oom": ("analyze.oom:Oom", "why memory ran out, and what to do"),
    "what-if": ("analyze.what_if:WhatIf", "the same run under other allocator settings, or on another GPU"),
    "fit": ("analyze.what_if:Fit", "the smallest GPU that the run fits on"),
    "report": ("analyze.report:Report", "one HTML page that shows the whole run, offline"),
    "serve": ("analyze.report:Serve", "the report, with full detail at any event"),
    "live": ("analyze.live:Live", "watch a program while it runs"),
    "export": ("analyze.trace_files:Export", "the trace in a format of another tool"),
    "convert": ("analyze.trace_files:Convert", "convert torch's memory snapshot into a trace"),
    "verify": ("analyze.trace_files:Verify", "whether the trace agrees with the allocator's own states"),
    "finish": ("analyze.trace_files:Finish", "recover the trace of a killed program"),
    "compact": ("analyze.trace_files:Compact", "compact the beginning of a trace into sums"),
}
"""Module, class and one-line help of each command, in the order of the help."""
_EXAMPLES = f"""\
  {PROGRAM} run train.py
  {PROGRAM} run.alloctrace
  {PROGRAM} leaks run.alloctrace --fail
  {PROGRAM} diff before.alloctrace after.alloctrace
"""


class Command(Protocol):
    """Interface of the commands in COMMANDS."""

    def parse(self, prog: str, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options. Raises SystemExit for wrong options, and after the help."""

    def execute(self, options: argparse.Namespace) -> int:
        """Run the command and return its exit status. Raises AlloctraceError for bad input."""


class Parser(argparse.ArgumentParser):
    """Parser that rejects abbreviations and reports errors in one line."""

    def __init__(self, **settings: Any) -> None:
        # With abbreviations, a command that has only --fail-above would accept --fail.
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        self.exit(command.BAD_INPUT, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def load(name: str) -> Command:
    loaded_command: Command = pkgutil.resolve_name(f"{__package__}.{COMMANDS[name][0]}")()
    return loaded_command


def parse(arguments: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """Return the command and its options. Raises SystemExit for wrong options, and after the help.

    Without arguments, or with `help`, the help is shown. Without a command name, `diagnose` reads one trace, and
    `ranks` reads a folder or several traces; then `omitted` in the options is true.
    """
    first_argument = arguments[0] if arguments else "help"
    if first_argument in ("help", "-h", "--help", "--version") and not os.path.exists(first_argument):
        _make_parser().parse_args(["--version" if first_argument == "--version" else "--help"])
    if first_argument in COMMANDS:
        name, command_arguments = first_argument, arguments[1:]
    elif first_argument.isidentifier() and not os.path.exists(first_argument):
        _make_parser().error(f"{first_argument!r} is neither a trace nor a command ({', '.join(COMMANDS)})")
    else:
        traces = [*itertools.takewhile(lambda word: not word.startswith("-"), arguments)]
        has_folder = any(trace.endswith(os.sep) or os.path.isdir(trace) for trace in traces)
        name, command_arguments = "ranks" if has_folder or len(traces) > 1 else "diagnose", arguments
    loaded_command = load(name)
    options = loaded_command.parse(f"{PROGRAM} {name}", command_arguments)
    options.omitted = command_arguments is arguments
    return loaded_command, options


def _make_parser() -> Parser:
    """Return the parser of a command line without a command. Its help lists the commands."""
    parser = Parser(
        prog=PROGRAM,
        usage="%(prog)s COMMAND [options]\n       %(prog)s TRACE|FOLDER [options]\n"
        "       %(prog)s run [options] SCRIPT [arguments]",
        description="Records the memory of a PyTorch program, and reports from the trace\n"
        "what leaks, what made the peak, what grows.",
        epilog=f"examples:\n{_EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"pytorch_alloctrace {__version__}")
    parser.add_argument_group(
        "commands (COMMAND --help shows the options of each)",
        "\n".join(f"{name:15}{summary}" for name, (_, summary) in COMMANDS.items()),
    )
    return parser
