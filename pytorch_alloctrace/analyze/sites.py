"""The verb `sites`."""

from __future__ import annotations

import argparse

from ..analysis.usage.lifetimes import measured_steps
from ..reading.sites import BY
from ..report.lifetimes import write_lifetimes
from .arguments import VerbParser
from .verb import Exit, Query, Verb

_ROWS = 5


class Sites(Verb):
    name = "sites"
    summary = "what each line allocates, and how long it lives"
    description = (
        "Shows which lines hold the most, which allocate the most per step, and how much of that outlives its step, is "
        "kept for backward, or waits for the allocator. Per step means on average over the last steps."
    )
    examples = (
        ("sites run.alloctrace --at step:10", "what each line had allocated when step 10 ended"),
        ("sites run.alloctrace --since step:10 --until step:20", "what each line allocated in these ten steps"),
        ("sites run.alloctrace --csv > sites.csv", "all lines, with all columns"),
    )
    if_cut = '"end" is where the trace breaks off, not the end of the run.'

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_at("the run up to this position (default: end)", None)
        parser.add_range(
            "what was allocated after this position",
            "what was allocated up to this position (default: end)",
        )
        parser.add_by(BY)
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
        since, until_asked = query.range
        until = next((position for position in (until_asked, options.at) if position is not None), "end")
        table = trace.lifetimes(device=options.device, by=options.by, since=since, until=until)
        top = query.rows(_ROWS)
        if options.json:
            query.print_json(table.head(top))
        elif options.csv:
            query.print_csv(table.head(top))
        elif table.empty:
            query.screen.text("Nothing was allocated.")
        else:
            steps = measured_steps(trace, device=options.device, since=since, until=until)
            begin = None if since is None else str(since)
            write_lifetimes(table, steps, str(until), options.by, query.screen, query.names, top, since=begin)
        return Exit.OK
