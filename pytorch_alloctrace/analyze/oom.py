"""The command `oom`."""

from __future__ import annotations

import sys

from ..analysis.advice import Advisor
from ..analysis.free_memory.failed_allocations import find_failed_allocations
from ..analysis.free_memory.oom import ALWAYS_FOUND, find_ooms
from ..reading.positions import Range
from ..report.oom import COLUMNS, oom_data, oom_row, write_ooms
from ..report.units import counted
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_REQUESTS = 3
_SITES = 20
"""Rows of each table in JSON."""


class Oom(TraceCommand):
    description = (
        "Shows the requests that were refused: what was asked for, what was free, and why it was not enough. Says what "
        "would help, and which lines held the most at that time."
    )
    examples = (
        ("oom run.alloctrace", "the last failed allocations, and what to do"),
        ("oom run.alloctrace --since step:20 --top 0", "all that were refused after step 20 had ended"),
    )
    if_cut = "Requests refused after the break are not known."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "those after this position (default: the beginning of the trace)",
            "those up to this position (default: end)",
        )
        parser.add_device()
        parser.add_csv()
        parser.add_top(_REQUESTS, "of the last failed allocations")
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options, top = query.trace, query.options, query.rows(_REQUESTS)
        # One more than is shown, to know whether there are more.
        found = [
            one
            for within in _asked(query)
            for one in find_ooms(trace, device=options.device, within=within, last=top + 1)
        ]
        all_of, found = len(found) <= top, found[-top:]
        if ALWAYS_FOUND <= len(found) < top:
            asked = sum(len(find_failed_allocations(trace, device=options.device, within=one)) for one in _asked(query))
            if asked > len(found):
                print(f"The last {len(found)} of {asked} failed allocations: more take too long.", file=sys.stderr)
        # A compacted part keeps the first and the last of its failed allocations, and the number of all.
        known = sum(trace.is_known_at(seq - 1) for seq in trace.failed_allocations)
        unknown = trace.kind_counts.get("oom", 0) - known
        names, advisor = query.names, Advisor(trace)
        if options.json:
            query.print_json("oom", [oom_data(one, names, advisor, _SITES) for one in found])
        elif options.csv:
            import pandas as pd

            table = pd.DataFrame([oom_row(one) for one in found], columns=list(COLUMNS))
            # Whole numbers stay whole where some are unknown.
            query.print_csv(table.convert_dtypes())
        elif not found and not query.is_whole:
            query.screen.text("No request ran out of memory in this range.")
        elif found or not unknown:
            write_ooms(found, advisor, query.screen, names, trace.begin_ns, all_of=all_of)
        if unknown:
            print(
                f"{counted(unknown, 'request')} of the compacted part ran out of memory at positions of which nothing"
                " else is known.",
                file=sys.stderr,
            )
        return Exit.OK


def _asked(query: Query) -> list[Range | None]:
    """The ranges in which requests are looked for; None: everywhere."""
    return [
        None if since is None and until is None else query.trace.range(since, until, device=query.options.device)
        for since, until in query.ranges
    ]
