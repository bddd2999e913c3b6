"""Command `diagnose`: what is wrong. A command line that begins with a trace runs it, too."""

from __future__ import annotations

import argparse

from ..analysis.summary import summarize
from ..report.first_screen import write_first_screen
from ..report.integrity import IN_DIAGNOSIS
from ..report.verdict import verdict_data, write_verdict
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 5


class Diagnose(TraceCommand):
    progress_label = "judging"
    description = (
        "Shows what is wrong on one screen: failed allocations, leaks, unused reserved memory, each with its line, "
        "cause and cure. --verbose adds all evidence, the peak and the end by line of your code, and the growth."
    )
    examples = (
        ("run.alloctrace", "what is wrong, on one screen"),
        ("run.alloctrace --verbose", "all findings and their evidence, peak, end and growth"),
        ("run.alloctrace --json > diagnosis.json", "the same as JSON, with all lines"),
    )
    if_truncated = IN_DIAGNOSIS

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--device",
            action="append",
            default=[],
            metavar="NAME",
            help='show only this device, such as "cuda:0" (repeatable)',
        )
        parser.add_markdown()
        parser.add_argument("--verbose", action="store_true", help="show everything; --top and --all-frames imply it")
        parser.add_brief()
        parser.add_top(_ROWS)
        parser.add_code()
        parser.notes = (
            "Peaks are allocated bytes, as torch counts them; lines and roles are requested\nbytes. docs/json.md "
            "describes the fields of --json.\n"
        )

    def complete_options(self, options: argparse.Namespace) -> None:
        options.verbose = options.verbose or options.all_frames or options.top is not None

    def shows_incomplete(self, options: argparse.Namespace) -> bool:
        # The first screen has a line on it.
        return super().shows_incomplete(options) and options.verbose

    def run(self, query: Query) -> Exit:
        summary = summarize(query.trace, top=query.rows(_ROWS), devices=query.options.device)
        if query.options.json:
            query.print_json("verdict", verdict_data(summary))
        elif query.options.markdown:
            from ..report.markdown import verdict_markdown

            query.print_text(verdict_markdown(summary))
        elif query.options.brief:
            from ..report.run_summary import run_summary

            query.print_text(run_summary(summary))
        elif query.options.verbose:
            write_verdict(summary, query.screen, query.frames)
        else:
            write_first_screen(summary, query.screen)
        return Exit.OK
