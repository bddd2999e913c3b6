"""The command `annotate`."""

from __future__ import annotations

import argparse
import os

from ..analysis.usage.annotation import annotate
from ..report.annotation import write_annotation
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand


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
