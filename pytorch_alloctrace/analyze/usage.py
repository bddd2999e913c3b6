"""The commands `sites` and `annotate`: what each line of code allocates."""

from __future__ import annotations

import argparse
import os

from ..analysis.usage.annotation import annotate
from ..analysis.usage.lifetimes import Lifetimes, range_lifetimes, whole_lifetimes
from ..analysis.usage.ranges import ranges_between
from ..analysis.usage.role_totals import range_role_totals, whole_role_totals
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
        "kept for backward, or waits for the allocator. Per step means on average over the last steps."
    )
    examples = (
        ("sites run.alloctrace --at step:10", "what each line had allocated when step 10 ended"),
        ("sites run.alloctrace --since step:10 --until step:20", "what each line allocated in these ten steps"),
        ("sites run.alloctrace --in validation", "what each line allocated in all regions of this name, summed up"),
        ("sites run.alloctrace --by role", "how much was allocated for parameters, gradients, activations, ..."),
        ("sites run.alloctrace --csv > sites.csv", "all lines, with all columns"),
    )
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

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

    def mistake(self, options: argparse.Namespace) -> str | None:
        if options.at is not None and (options.since, options.until, options.region) != (None, None, None):
            return "--at is one position, --since and --until are two, as --in is: give either"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        if options.by == "role":
            return self._by_role(query)
        found = self._lifetimes(query)
        top = query.rows(_ROWS)
        if options.json or options.csv:
            table = found.table(trace.stacks, query.by).head(top)
            if options.json:
                query.print_json("sites", table)
            else:
                query.print_csv(table)
        else:
            write_lifetimes(found, trace.stacks, query.span(options.at), query.by, query.screen, query.names, top)
        return Exit.OK

    def _by_role(self, query: Query) -> Exit:
        trace, options, ranges = query.trace, query.options, query.ranges
        if ranges[0][0] is None:
            table = whole_role_totals(trace, self._until(query), device=options.device)
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

    def _lifetimes(self, query: Query) -> Lifetimes:
        trace, options = query.trace, query.options
        ranges = query.ranges
        if ranges[0][0] is None:
            return whole_lifetimes(trace, self._until(query), device=options.device)
        return range_lifetimes(trace, ranges_between(trace, ranges, device=options.device), device=options.device)

    @staticmethod
    def _until(query: Query) -> Position:
        """The end of a run that is looked at from its beginning."""
        return next((one for one in (query.ranges[0][1], query.options.at) if one is not None), "end")


class Annotate(TraceCommand):
    description = (
        "Shows a source file of the program: for each line what it and all that it called allocated, how much of that "
        "was held at the peak, and how much at the end. FILE may be the end of its path."
    )
    examples = (
        ("annotate run.alloctrace train.py", "what each line of train.py allocated"),
        ("annotate run.alloctrace train.py --since step:10 --until step:11", "the same for one step"),
        ("annotate run.alloctrace train.py --in validation", "the same for all regions of this name, summed up"),
        ("annotate run.alloctrace models/train.py --csv > train.csv", "the same as a table"),
    )
    traces = "TRACE FILE"
    if_cut = "What the lines allocated after the break is not in it, and a higher peak may have come after it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "what was allocated after this position (default: the beginning of the trace)",
            "what was allocated up to this position (default: end)",
        )
        parser.add_device("show only this device (default: the one with the highest peak)")
        parser.add_csv()
        parser.set_defaults(file="")

    def settle(self, options: argparse.Namespace) -> None:
        if len(options.traces) == 2:
            # In either order: the trace is a file here, and is not Python.
            trace, options.file = sorted(
                options.traces, key=lambda name: (name.endswith(".py"), not os.path.isfile(name))
            )
            options.traces = [trace]

    def mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 1:
            return f"annotate takes a trace and one file of its program, not {len(options.traces)} names"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        found = annotate(query.trace, options.file, query.ranges, device=options.device)
        if options.json:
            query.print_json("annotate", found.table)
        elif options.csv:
            query.print_csv(found.table)
        else:
            write_annotation(found, query.span(), query.trace.begin_ns, query.screen, query.names)
        return Exit.OK
