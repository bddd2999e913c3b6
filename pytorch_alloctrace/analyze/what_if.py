"""The verb `what-if`."""

from __future__ import annotations

from ..report.what_if import what_if_data, write_what_if
from .arguments import VerbParser, byte_count
from .verb import Exit, Query, Verb


class WhatIf(Verb):
    name = "what-if"
    summary = "the same run under other allocator settings, or on another card"
    description = (
        "Runs the requests of the trace through a model of torch's CUDA allocator, under other settings and on a card "
        "of any size: what would have been reserved, and which request refused. Without --setting it tries the "
        "sensible ones and ranks them."
    )
    examples = (
        ("what-if run.alloctrace", "the sensible settings, the best first"),
        ("what-if run.alloctrace --setting expandable_segments:True", "one setting"),
        ("what-if run.alloctrace --memory 24GiB --outside 700MiB", "on a card of 24 GiB, 700 MiB of it used by others"),
    )
    if_cut = "What the program requested after the break is not in it."
    working = "running the model"

    def add_arguments(self, parser: VerbParser) -> None:
        add_settings(parser)
        parser.add_argument(
            "--memory",
            type=byte_count,
            metavar="SIZE",
            help="of the card, such as 40GiB or 40GB, of 1000 (default: that of the run)",
        )
        add_outside(parser)
        parser.add_device("whose requests (default: the CUDA device with the most reserved)")
        parser.add_csv()
        parser.add_user_path()

    def run(self, query: Query) -> Exit:
        options = query.options
        found = query.trace.what_if(
            options.setting, memory=options.memory, outside=options.outside, device=options.device
        )
        if options.json:
            query.print_json(what_if_data(found))
        elif options.csv:
            query.print_csv(found.table)
        else:
            write_what_if(found, query.screen, query.names)
        return Exit.OK


def add_settings(parser: VerbParser) -> None:
    """Which settings are tried."""
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="as in PYTORCH_ALLOC_CONF, such as expandable_segments:True; several with commas are one try, and the "
        "option can be repeated",
    )


def add_outside(parser: VerbParser) -> None:
    """What torch does not get."""
    parser.add_argument(
        "--outside",
        type=byte_count,
        metavar="SIZE",
        help="what torch does not get of the card: CUDA's context, libraries, other processes (default: the most that "
        "the driver reported, else 700MiB)",
    )
