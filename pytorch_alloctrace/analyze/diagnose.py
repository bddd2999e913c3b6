"""`diagnose`, the command of a command line that begins with a trace."""

from __future__ import annotations

from ..analysis.summary import summarize
from ..report.integrity import IN_DIAGNOSIS
from ..report.verdict import verdict_data, write_verdict
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 5


class Diagnose(TraceCommand):
    working = "judging"
    description = (
        "Says first what is wrong: requests that ran out of memory, leaks, memory held for nothing. Then what the peak "
        "consisted of by line of your code, what was live at the end, and the growth."
    )
    examples = (
        ("run.alloctrace", "what is wrong, then peak, end and growth"),
        ("run.alloctrace --json > diagnosis.json", "the same for programs, with all lines"),
    )
    if_cut = IN_DIAGNOSIS

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
        parser.notes = "Sizes are those that the program requested. docs/json.md has the fields of\n--json.\n"

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
