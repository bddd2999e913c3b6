"""Command `oom`: failed allocations, and what would help."""

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

_DEFAULT_ROWS = 3
_JSON_SITES = 20
"""Maximum rows of each table in JSON."""


class Oom(TraceCommand):
    description = (
        "Shows the allocations that failed: the requested size, the free memory, and why it did not suffice; then what "
        "would help, and which lines held the most at that time."
    )
    examples = (
        ("oom run.alloctrace", "the last failed allocations, and what to do"),
        ("oom run.alloctrace --since step:20 --top 0", "all failed allocations after the end of step 20"),
    )
    if_truncated = "Failed allocations after the break are unknown."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_range(
            "failed allocations after this position (default: the beginning of the trace)",
            "failed allocations up to this position (default: end)",
        )
        parser.add_device()
        parser.add_csv()
        parser.add_top(_DEFAULT_ROWS, "of the last failed allocations")
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options, top = query.trace, query.options, query.rows(_DEFAULT_ROWS)
        # One more than shown, to detect whether there are more.
        ooms = [
            oom
            for within in _list_ranges(query)
            for oom in find_ooms(trace, device=options.device, within=within, last=top + 1)
        ]
        is_complete, ooms = len(ooms) <= top, ooms[-top:]
        if ALWAYS_FOUND <= len(ooms) < top:
            total = sum(
                len(find_failed_allocations(trace, device=options.device, within=within))
                for within in _list_ranges(query)
            )
            if total > len(ooms):
                print(
                    f"Only the last {len(ooms)} of {total} failed allocations are shown: more take too long.",
                    file=sys.stderr,
                )
        # A compacted trace has the first and the last failed allocations, and the number of all.
        detailed = sum(trace.is_known_at(seq - 1) for seq in trace.failed_allocations)
        undetailed = trace.kind_counts.get("oom", 0) - detailed
        names, advisor = query.names, Advisor(trace)
        if options.json:
            query.print_json("oom", [oom_data(oom, names, advisor, _JSON_SITES) for oom in ooms])
        elif options.csv:
            import pandas as pd

            table = pd.DataFrame([oom_row(oom) for oom in ooms], columns=list(COLUMNS))
            # Keeps integers in columns with missing values.
            query.print_csv(table.convert_dtypes())
        elif not ooms and not query.is_whole_run:
            query.screen.text("No request ran out of memory in this range.")
        elif ooms or not undetailed:
            write_ooms(ooms, advisor, query.screen, names, trace.begin_ns, all_of=is_complete)
        if undetailed:
            print(
                f"{counted(undetailed, 'request')} of the compacted part ran out of memory: only the number is known.",
                file=sys.stderr,
            )
        return Exit.OK


def _list_ranges(query: Query) -> list[Range | None]:
    """Return the ranges to search; None stands for the whole trace."""
    return [
        None if since is None and until is None else query.trace.range(since, until, device=query.options.device)
        for since, until in query.ranges
    ]
