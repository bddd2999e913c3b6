"""The verb `report`."""

from __future__ import annotations

from pathlib import Path

from ..report import units
from .arguments import VerbParser
from .verb import Exit, Query, Verb


class Report(Verb):
    name = "report"
    summary = "one HTML page that shows the whole run, offline"
    description = (
        "Writes one HTML file that shows the diagnosis, the memory over time, what was in memory at any of many "
        "moments, segments, fragmentation and leaks. It needs no network and can be sent to others."
    )
    examples = (
        ("report run.alloctrace --open", "write run.html next to the trace, and show it in the browser"),
        ("report run.alloctrace -o memory.html --redact", "without source, arguments, host and folders, to be shared"),
    )
    if_cut = "What came after the break is not in the report."

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_output(" (default: next to the trace, with the ending .html)")
        parser.add_argument("--open", action="store_true", help="show the page in the browser, too")
        parser.add_argument(
            "--redact",
            action="store_true",
            help="leave out source, arguments, the host's name and folders: for a report that is shared",
        )
        parser.add_user_path()

    def run(self, query: Query) -> Exit:
        options = query.options
        target = query.target(Path(query.trace.path).with_suffix(".html"))
        report = query.trace.report(redact=options.redact)
        written = report.open(target) if options.open else report.write(target)
        if options.json:
            query.print_json({"path": str(written), "bytes": written.stat().st_size})
        else:
            query.screen.text(f"{written}: {units.size(written.stat().st_size)}")
        return Exit.OK
