"""The command `timeline`."""

from __future__ import annotations

import argparse

import pandas as pd

from ..reading.positions import Position
from ..reading.tables import role_timeline, timeline
from ..reading.timeline import in_range
from ..report.timeline import write_role_timeline, write_timeline
from .arguments import CommandParser, positive
from .trace_command import Exit, Query, TraceCommand

_BY = ("sum", "role")
_POINTS = 2000
_MOST_POINTS = 100_000
"""A million take minutes and gigabytes."""


class Timeline(TraceCommand):
    description = (
        "Shows each sum of a device's memory over time, with the highest of each interval, so that no peak is lost "
        "(docs/reading.md says what each means); by role, the requested bytes at the end of each interval."
    )
    examples = (
        ("timeline run.alloctrace --since step:10 --csv > timeline.csv", "the sums after step 10, to plot"),
        ("timeline run.alloctrace --by role", "how much was for parameters, gradients, activations, ... over time"),
    )
    if_cut = "The curves stop where the trace breaks off, not where the run ended."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "from the interval of this position on (default: the beginning of the trace)",
            "up to the interval of this position (default: end)",
        )
        parser.add_argument(
            "--points",
            type=_points,
            default=_POINTS,
            metavar="N",
            help=f"divide the whole trace into N intervals (default: {_POINTS})",
        )
        parser.add_by(_BY)
        parser.add_device()
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        by_role = options.by == "role"
        make = role_timeline if by_role else timeline
        table = make(trace, options.points, device=options.device)
        if not query.is_whole:
            device = options.device

            def time_ns(position: Position | None) -> int | None:
                return None if position is None else trace.time_ns(position, device=device)

            parts = []
            for since, until in query.ranges:
                trace.range(since, until, device=device)  # raises where nothing happened in between
                parts.append(table[in_range(table, time_ns(since), time_ns(until))].reset_index(drop=True))
            # An interval may be in several short ranges.
            table = pd.concat(parts).drop_duplicates(["device", "time_ns"]).sort_values("time_ns", kind="stable")
            table = table.sort_values("device", kind="stable", ignore_index=True) if len(parts) > 1 else parts[0]
        if options.json:
            query.print_json("timeline", table)
        elif options.csv:
            query.print_csv(table)
        else:
            (write_role_timeline if by_role else write_timeline)(table, query.screen)
        return Exit.OK


def _points(text: str) -> int:
    value = positive(text)
    if value > _MOST_POINTS:
        raise argparse.ArgumentTypeError(f"{text} intervals are too many: at most {_MOST_POINTS}")
    return value
