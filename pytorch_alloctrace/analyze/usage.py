"""Commands `sites` and `annotate`: what each line of code allocates."""

from __future__ import annotations

import argparse
import os

from ..analysis.usage.annotation import annotate
from ..analysis.usage.lifetimes import Lifetimes, lifetimes_of_run, range_lifetimes
from ..analysis.usage.ranges import ranges_between
from ..analysis.usage.role_totals import range_role_totals, role_totals_of_run
from ..reading.positions import Position
from ..reading.sites import BY
from ..report.annotation import write_annotation
from ..report.lifetimes import write_lifetimes
from ..report.roles import write_role_totals
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 5


class Sites(TraceCommand):
    description = (
        "Shows which lines hold the most, which allocate the most per step, and how much of that outlives its step, is "
        "kept for backward, or waits for the allocator. Values per step are averages over the last steps."
    )
    examples = (
        ("sites run.alloctrace --at step:10", "what each line allocated up to the end of step 10"),
        ("sites run.alloctrace --since step:10 --until step:20", "what each line allocated in these ten steps"),
        ("sites run.alloctrace --in validation", "what each line allocated in all regions of this name together"),
        ("sites run.alloctrace --by role", "bytes allocated for parameters, gradients, activations, ..."),
        ("sites run.alloctrace --csv > sites.csv", "all lines, with all columns"),
    )
    if_truncated = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("the run up to this position (default: end)", None)
        parser.add_range(
            "what was allocated after this position",
            "what was allocated up to this position (default: end)",
        )
        parser.add_by((*BY, "role"))
        parser.add_device()
        parser.add_csv()
        parser.add_top(_ROWS)
        parser.add_code()

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if options.at is not None and (options.since, options.until, options.region) != (None, None, None):
            return "--at is one position, but --since, --until and --in are a range: give either"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        if options.by == "role":
            return self._print_by_role(query)
        lifetimes = self._read_lifetimes(query)
        top = query.rows(_ROWS)
        if options.json or options.csv:
            table = lifetimes.table(trace.stacks, query.by).head(top)
            if options.json:
                query.print_json("sites", table)
            else:
                query.print_csv(table)
        else:
            write_lifetimes(lifetimes, trace.stacks, query.span(options.at), query.by, query.screen, query.names, top)
        return Exit.OK

    def _print_by_role(self, query: Query) -> Exit:
        trace, options, ranges = query.trace, query.options, query.ranges
        if ranges[0][0] is None:
            table = role_totals_of_run(trace, self._end_position(query), device=options.device)
        else:
            within = ranges_between(trace, ranges, device=options.device)
            table = range_role_totals(trace, within, device=options.device)
        if options.json:
            query.print_json("sites", table)
        elif options.csv:
            query.print_csv(table)
        else:
            write_role_totals(table, query.span(options.at), query.screen)
        return Exit.OK

    def _read_lifetimes(self, query: Query) -> Lifetimes:
        trace, options = query.trace, query.options
        ranges = query.ranges
        if ranges[0][0] is None:
            return lifetimes_of_run(trace, self._end_position(query), device=options.device)
        return range_lifetimes(trace, ranges_between(trace, ranges, device=options.device), device=options.device)

    @staticmethod
    def _end_position(query: Query) -> Position:
        """Return the end of a range that begins with the trace."""
        return next((position for position in (query.ranges[0][1], query.options.at) if position is not None), "end")


class Annotate(TraceCommand):
    description = (
        "Shows a source file of the program with the memory of each line, calls included: allocated, live at the peak, "
        "and live at the end. FILE may be the end of its path."
    )
    examples = (
        ("annotate run.alloctrace train.py", "what each line of train.py allocated"),
        ("annotate run.alloctrace train.py --since step:10 --until step:11", "the same for one step"),
        ("annotate run.alloctrace train.py --in validation", "the same for all regions of this name together"),
        ("annotate run.alloctrace models/train.py --csv > train.csv", "the same as a table"),
    )
    traces = "TRACE FILE"
    if_truncated = "What the lines allocated after the break is not in it, and a higher peak may have come after it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "what was allocated after this position (default: the beginning of the trace)",
            "what was allocated up to this position (default: end)",
        )
        parser.add_device("show only this device (default: the one with the highest peak)")
        parser.add_csv()
        parser.set_defaults(file="")

    def complete_options(self, options: argparse.Namespace) -> None:
        if len(options.traces) == 2:
            # Trace and FILE may come in either order: the trace exists and does not end in .py.
            trace, options.file = sorted(
                options.traces, key=lambda name: (name.endswith(".py"), not os.path.isfile(name))
            )
            options.traces = [trace]

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 1:
            return f"annotate takes a trace and one file of its program, not {len(options.traces)} names"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        annotation = annotate(query.trace, options.file, query.ranges, device=options.device)
        if options.json:
            query.print_json("annotate", annotation.table)
        elif options.csv:
            query.print_csv(annotation.table)
        else:
            write_annotation(annotation, query.span(), query.trace.begin_ns, query.screen, query.names)
        return Exit.OK
