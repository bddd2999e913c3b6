"""The verb `leaks`."""

from __future__ import annotations

import pandas as pd

from ..analysis import summarize
from ..analysis.leaks.leak import leaks_as_table
from ..analysis.summary import LeaksAnswer
from ..report.verdict import write_leaks
from .arguments import VerbParser
from .verb import Exit, Query, Verb

_STATUSES = {LeaksAnswer.FOUND: Exit.FOUND, LeaksAnswer.NONE: Exit.OK, LeaksAnswer.UNKNOWN: Exit.UNKNOWN}


class Leaks(Verb):
    name = "leaks"
    summary = "what leaks, how fast, and the line to look at"
    description = (
        "Shows the lines whose blocks are allocated again and again and never freed, and the buffers that are replaced "
        "by ever larger ones. The whole run is judged, or a range of its steps, most certain and fastest leaks first."
    )
    examples = (
        ("leaks run.alloctrace", "each leak with its rate, how certain it is, and when the device is full"),
        ("leaks run.alloctrace --fail", "the same; exit status 1 when there is one, 3 when this cannot be judged"),
        ("leaks run.alloctrace --since step:10", "what leaks once ten steps have gone by"),
    )
    if_cut = "Whether anything leaked after the break is unknown."

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_range(
            "judge the steps that lie wholly after this position; what came before is warm-up",
            "judge the steps that lie wholly before this position (default: end)",
        )
        parser.add_device()
        parser.add_argument(
            "--fail",
            action="store_true",
            help="for CI: exit with status 1 when there is a leak, 3 when this cannot be judged",
        )
        parser.add_csv()
        parser.add_top(0, "leaks")
        parser.add_code()

    def run(self, query: Query) -> Exit:
        trace, options = query.trace, query.options
        top = query.rows(0)
        is_whole = options.since is None and options.until is None
        within = None if is_whole else trace.range(options.since, options.until, device=options.device)
        devices = [options.device] if options.device else []
        summary = summarize(trace, devices=devices, of_leaks=True, within=within)
        if options.json or options.csv:
            leaks = leaks_as_table(trace, [leak for device in summary.devices for leak in device.leaks.leaks])
            if options.json:
                query.print_json(leaks.head(top))
            else:
                query.print_csv(_flat(leaks.head(top)))
        else:
            write_leaks(summary, query.screen, top, query.frames)
        return _STATUSES[summary.leaks_answer] if options.fail else Exit.OK


def _flat(leaks: pd.DataFrame) -> pd.DataFrame:
    """The sites of each leak in one cell: FILE:LINE BYTES, separated by semicolons."""
    sites = ["; ".join(f"{site['filename']}:{site['line']} {site['bytes']}" for site in row) for row in leaks["sites"]]
    return leaks.assign(sites=sites)
