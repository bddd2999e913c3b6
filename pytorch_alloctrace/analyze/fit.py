"""The verb `fit`."""

from __future__ import annotations

from ..report.what_if import fit_data, write_fit
from .arguments import VerbParser
from .verb import Exit, Query, Verb
from .what_if import add_outside, add_settings


class Fit(Verb):
    name = "fit"
    summary = "the smallest card that the run fits on"
    description = (
        "Looks for the smallest memory on which no request of the run would have been refused, and shows what it comes "
        "to on common cards. Sizes are tried one by one: a run that fits on one need not fit on all above."
    )
    examples = (
        ("fit run.alloctrace", "the smallest memory, as recorded and with expandable segments"),
        ("fit run.alloctrace --setting max_split_size_mb:128", "under another setting"),
    )
    if_cut = "What the program requested after the break is not in it."
    working = "running the model"

    def add_arguments(self, parser: VerbParser) -> None:
        add_settings(parser)
        add_outside(parser)
        parser.add_device("whose requests (default: the CUDA device with the most reserved)")
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        options = query.options
        found = query.trace.fit(options.setting, outside=options.outside, device=options.device)
        if options.json:
            query.print_json(fit_data(found))
        elif options.csv:
            query.print_csv(found.table)
        else:
            write_fit(found, query.screen)
        return Exit.OK
