"""Commands `what-if` and `fit`: simulations of a trace under other settings, and on other GPUs."""

from __future__ import annotations

from ..analysis.what_if.fitting import find_fit
from ..analysis.what_if.prediction import predict
from ..report.what_if import fit_data, what_if_data, write_fit, write_what_if
from .arguments import CommandParser, parse_byte_count, parse_gpu
from .trace_command import Exit, Query, TraceCommand


class WhatIf(TraceCommand):
    description = (
        "Simulates torch's CUDA allocator on the requests of the trace, under other settings and on a GPU of any size: "
        "how much memory would be reserved, and which request would fail. Without --setting it tries the sensible "
        "settings, torch's defaults and the recorded settings without each one, and ranks them."
    )
    examples = (
        ("what-if run.alloctrace", "the sensible settings, the best first"),
        ("what-if run.alloctrace --setting expandable_segments:True", "one setting"),
        ("what-if run.alloctrace --memory 24GB --outside 700MiB", "on a GPU of 24 GB, 700 MiB of it used by others"),
    )
    if_truncated = "What the program requested after the break is not in it."
    progress_label = "running the model"

    def add_arguments(self, parser: CommandParser) -> None:
        _add_setting(parser)
        parser.add_argument(
            "--memory",
            type=parse_gpu,
            metavar="GPU",
            help="memory of the GPU: a name such as A10G, or a size such as 24GB (default: that of the run)",
        )
        _add_outside(parser)
        parser.add_device("whose requests (default: the CUDA device with the most reserved)")
        parser.add_csv()
        parser.add_user_path()

    def run(self, query: Query) -> Exit:
        options = query.options
        prediction = predict(
            query.trace, options.setting, memory=options.memory, outside=options.outside, device=options.device
        )
        if options.json:
            query.print_json("what-if", what_if_data(prediction))
        elif options.csv:
            query.print_csv(prediction.to_frame())
        else:
            write_what_if(prediction, query.screen, query.names)
        return Exit.OK


class Fit(TraceCommand):
    description = (
        "Finds the smallest memory on which no request of the run would fail, and shows the result for common GPUs. "
        "Sizes are tried one by one: a run that fits on one size may fail on a larger one."
    )
    examples = (
        ("fit run.alloctrace", "the smallest memory, as recorded, with torch's defaults and with expandable segments"),
        ("fit run.alloctrace --setting max_split_size_mb:128", "under another setting"),
    )
    if_truncated = "What the program requested after the break is not in it."
    progress_label = "running the model"

    def add_arguments(self, parser: CommandParser) -> None:
        _add_setting(parser)
        _add_outside(parser)
        parser.add_device("whose requests (default: the CUDA device with the most reserved)")
        parser.add_csv()

    def run(self, query: Query) -> Exit:
        options = query.options
        fit = find_fit(query.trace, options.setting, outside=options.outside, device=options.device)
        if options.json:
            query.print_json("fit", fit_data(fit))
        elif options.csv:
            query.print_csv(fit.to_frame())
        else:
            write_fit(fit, query.screen)
        return Exit.OK


def _add_setting(parser: CommandParser) -> None:
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="as in PYTORCH_ALLOC_CONF, such as expandable_segments:True, instead of the recorded settings; settings "
        "joined by commas are tried together (repeatable)",
    )


def _add_outside(parser: CommandParser) -> None:
    parser.add_argument(
        "--outside",
        type=parse_byte_count,
        metavar="SIZE",
        help="memory of the GPU that is not available to torch: CUDA's context, libraries, other processes (default: "
        "the maximum that the driver reported, else 700MiB)",
    )
