"""The verb `timeline`."""

from __future__ import annotations

from ..errors import PositionError
from ..report.timeline import write_timeline
from .arguments import VerbParser, positive
from .verb import Exit, Query, Verb

_POINTS = 2000


class Timeline(Verb):
    name = "timeline"
    summary = "requested, allocated, active, reserved bytes over time"
    description = (
        "Shows each sum of a device's memory over time, with the highest of each interval, so that no peak is lost. "
        "docs/reading.md says what each sum means."
    )
    examples = (("timeline run.alloctrace --since step:10 --csv > timeline.csv", "the sums after step 10, to plot"),)

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_range(
            "begin after this position (default: the beginning of the trace)", "end at this position (default: end)"
        )
        parser.add_argument(
            "--points",
            type=positive,
            default=_POINTS,
            metavar="N",
            help=f"divide the whole trace into N intervals (default: {_POINTS})",
        )
        parser.add_device()
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        table = trace.timeline(options.points, device=options.device)
        if (options.since, options.until) != (None, None):
            trace.range(options.since, options.until)  # raises where nothing happened in between
        if options.since is not None:
            table = table[table["time_ns"] >= trace.time_ns(options.since)]
        if options.until is not None:
            table = table[table["time_ns"] <= trace.time_ns(options.until)]
        if table.empty:
            raise PositionError("no interval begins in this range: they are too long (--points)")
        table = table.reset_index(drop=True)
        if options.json:
            query.print_json(table)
        elif options.csv:
            query.print_csv(table)
        else:
            write_timeline(table, query.screen)
        return Exit.OK
