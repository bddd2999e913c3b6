"""Command `diagnose`: what is wrong. A command line that begins with a trace runs it, too."""

from __future__ import annotations

from ..analysis.summary import summarize
from ..report.integrity import IN_DIAGNOSIS
from ..report.verdict import verdict_data, write_verdict
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 5


class Diagnose(TraceCommand):
    progress_label = "judging"
    description = (
        "Shows first what is wrong: failed allocations, leaks, unused reserved memory. Then the composition of the "
        "peak by line of your code, the live memory at the end, and the growth."
    )
    examples = (
        ("run.alloctrace", "what is wrong, then peak, end and growth"),
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
        parser.add_top(_ROWS)
        parser.add_code()
        parser.notes = "Sizes are requested bytes. docs/json.md describes the fields of --json.\n"

    def run(self, query: Query) -> Exit:
        summary = summarize(query.trace, top=query.rows(_ROWS), devices=query.options.device)
        if query.options.json:
            query.print_json("verdict", verdict_data(summary))
        elif query.options.markdown:
            from ..report.markdown import verdict_markdown

            query.print_text(verdict_markdown(summary))
        else:
            write_verdict(summary, query.screen, query.frames)
        return Exit.OK
