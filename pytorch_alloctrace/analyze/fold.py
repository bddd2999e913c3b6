"""The command `fold`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..reading.folding import Folded, fold
from ..report import units
from .arguments import POSITIONS, CommandParser, position
from .trace_command import Exit, Query, TraceCommand


class Fold(TraceCommand):
    description = (
        "Writes a trace in which all that happened up to a position is folded into sums: what each line has allocated, "
        "the peaks and what they consisted of, the leaks. What came after the position is there event by event."
    )
    examples = (
        (
            "fold run.alloctrace --until peak -o small.alloctrace",
            "a trace of days: the last steps in full",
        ),
    )
    traces = "TRACE"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.notes += POSITIONS
        parser.add_argument(
            "--until", dest="fold_until", type=position, metavar="POSITION", help="fold what happened up to here"
        )
        parser.add_output("")

    def mistake(self, options: argparse.Namespace) -> str | None:
        if options.spool is not None:
            return "fold takes a trace that has its end: end a killed one with `finish`"
        if options.fold_until is None or options.output is None:
            missing = "--until says up to where" if options.fold_until is None else "--output names the smaller trace"
            return f"{missing}: fold {options.traces[0]} --until POSITION --output FILE"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        done = fold(
            options.traces[0], query.target(Path(options.output)), until=options.fold_until, overwrite=options.overwrite
        )
        if options.json:
            query.print_json("fold", done)
        else:
            query.screen.text(_sentence(done))
        return Exit.OK


def _sentence(done: Folded) -> str:
    before, after = units.size(done.bytes_before), units.size(done.bytes_after)
    return (
        f"{done.trace}: {units.counted(done.events, 'event')} up to event {done.until - 1:,} are folded into sums; "
        f"{after}, where the whole trace has {before}."
    )
