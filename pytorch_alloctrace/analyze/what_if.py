"""The commands `what-if` and `fit`: the requests of a trace under other settings, and on other GPUs."""

from __future__ import annotations

from ..analysis.what_if.fitting import find_fit
from ..analysis.what_if.prediction import predict
from ..report.what_if import fit_data, what_if_data, write_fit, write_what_if
from .arguments import CommandParser, byte_count
from .trace_command import Exit, Query, TraceCommand


class WhatIf(TraceCommand):
    description = (
        "Runs the requests of the trace through a model of torch's CUDA allocator, under other settings and on a GPU "
        "of any size: what would have been reserved, and which request refused. Without --setting it tries the "
        "sensible ones and ranks them."
    )
    examples = (
        ("what-if run.alloctrace", "the sensible settings, the best first"),
        ("what-if run.alloctrace --setting expandable_segments:True", "one setting"),
        ("what-if run.alloctrace --memory 24GiB --outside 700MiB", "on a GPU of 24 GiB, 700 MiB of it used by others"),
    )
    if_cut = "What the program requested after the break is not in it."
    working = "running the model"

    def add_arguments(self, parser: CommandParser) -> None:
        _add_settings(parser)
        parser.add_argument(
            "--memory",
            type=byte_count,
            metavar="SIZE",
            help="of the GPU, such as 40GiB or 40GB, of 1000 (default: that of the run)",
        )
        _add_outside(parser)
        parser.add_device("whose requests (default: the CUDA device with the most reserved)")
        parser.add_csv()
        parser.add_user_path()

    def run(self, query: Query) -> Exit:
        options = query.options
        found = predict(
            query.trace, options.setting, memory=options.memory, outside=options.outside, device=options.device
        )
        if options.json:
            query.print_json("what-if", what_if_data(found))
        elif options.csv:
            query.print_csv(found.to_frame())
        else:
            write_what_if(found, query.screen, query.names)
        return Exit.OK


class Fit(TraceCommand):
    description = (
        "Looks for the smallest memory on which no request of the run would have been refused, and shows what it comes "
        "to on common GPUs. Sizes are tried one by one: a run that fits on one need not fit on all above."
    )
    examples = (
        ("fit run.alloctrace", "the smallest memory, as recorded and with expandable segments"),
        ("fit run.alloctrace --setting max_split_size_mb:128", "under another setting"),
    )
    if_cut = "What the program requested after the break is not in it."
    working = "running the model"

    def add_arguments(self, parser: CommandParser) -> None:
        _add_settings(parser)
        _add_outside(parser)
        parser.add_device("whose requests (default: the CUDA device with the most reserved)")
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        options = query.options
        found = find_fit(query.trace, options.setting, outside=options.outside, device=options.device)
        if options.json:
            query.print_json("fit", fit_data(found))
        elif options.csv:
            query.print_csv(found.to_frame())
        else:
            write_fit(found, query.screen)
        return Exit.OK


def _add_settings(parser: CommandParser) -> None:
    """Which settings are tried."""
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="as in PYTORCH_ALLOC_CONF, such as expandable_segments:True; several with commas are one try, and the "
        "option can be repeated",
    )


def _add_outside(parser: CommandParser) -> None:
    """What torch does not get."""
    parser.add_argument(
        "--outside",
        type=byte_count,
        metavar="SIZE",
        help="memory of the GPU that torch cannot have: CUDA's context, libraries, other processes (default: the most "
        "that the driver reported, else 700MiB)",
    )
