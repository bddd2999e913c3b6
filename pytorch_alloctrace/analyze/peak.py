"""The verb `peak`."""

from __future__ import annotations

import argparse

from ..analysis.usage.composition import COMPOSITION_BY
from ..analysis.usage.live_memory import highest_of_ranges
from ..reading.positions import PEAKS
from ..report.composition import composition_data, write_composition
from .arguments import VerbParser
from .verb import Exit, Query, Verb

_ROWS = 10


class Peak(Verb):
    name = "peak"
    summary = "what the memory consisted of when it was at its highest"
    description = (
        "Shows what was live when the most was allocated (or reserved, or at another position). Rows are lines of your "
        "code, each with its share; below them the same by phase of the step and by age."
    )
    examples = (
        ("peak run.alloctrace --by function", "which functions hold the peak"),
        ("peak run.alloctrace --at step:10", "what was live when step 10 ended"),
        ("peak run.alloctrace --since step:10 --until step:20", "the peak within ten steps"),
        ("peak run.alloctrace --in validation", "the highest peak of all regions of this name"),
        ("peak run.alloctrace --top 3 --all-frames", "the three lines that hold most, each with its whole stack"),
    )
    if_cut = "A higher peak may have come after the break."

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_at("what to show: peak (default), peak:reserved, or any other position", "peak")
        parser.add_range(
            "the peak after this position (default: the beginning of the trace)",
            "the peak up to this position (default: end)",
        )
        parser.add_by(COMPOSITION_BY)
        parser.add_device("show only this device (default: the one with the highest peak)")
        parser.add_csv()
        parser.add_top(_ROWS, "rows of the table")
        parser.add_code()

    def mistake(self, options: argparse.Namespace) -> str | None:
        has_range = (options.since, options.until, options.region) != (None, None, None)
        if has_range and options.at not in PEAKS:
            return f"--since, --until and --in look for a peak: --at peak or peak:reserved, not {options.at}"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        found = highest_of_ranges(trace, query.ranges, options.at, by=options.by, device=options.device)
        top = query.rows(_ROWS)
        if options.json:
            query.print_json(composition_data(found, top))
        elif options.csv:
            query.print_csv(found.composition.head(top))
        else:
            write_composition(found, trace.begin_ns, query.screen, query.names, top)
        return Exit.OK
