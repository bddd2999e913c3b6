"""The command `ranks`: all ranks of a distributed run. It is also that of a command line that begins with a folder or
several traces."""

from __future__ import annotations

import argparse

from rich.console import Console

from ..analysis.summary import LeaksAnswer
from ..errors import TraceError
from ..reading.names import named_device
from ..report.progress import SlowProgress
from ..report.screen import Screen
from .arguments import CommandParser, positive
from .trace_command import Exit, Query, TraceCommand

_ROWS = 10
_REASONS = 4
"""The error gives the reasons of this many traces that cannot be read."""


class Ranks(TraceCommand):
    description = (
        "Reads the traces of all ranks, each in a process of its own, and says which rank differs, in which line and "
        "since which step. A folder, or several traces, need no command."
    )
    examples = (
        ("traces/", "the ranks whose traces are in a folder"),
        ("ranks traces/ --fail", "the same; exit status 1 when a rank leaks or differs, 3 when one cannot be judged"),
        ("ranks traces/ --csv > ranks.csv", "the figures of all of them"),
    )
    traces = "FOLDER|TRACE..."
    traces_help = "a folder with the traces of all ranks, several such folders, or the traces"
    reads_events = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_device('what the table shows, such as "cpu"; cuda: each rank\'s own (default: what holds most)')
        parser.add_argument(
            "--fail",
            action="store_true",
            help="for CI: exit with status 1 when a rank leaks, ran out of memory or differs from the others, 3 when "
            "one has no whole trace or cannot be judged",
        )
        parser.add_argument("--jobs", type=positive, metavar="N", help="processes that read (default: one a core)")
        parser.add_argument(
            "--scheduler",
            metavar="ADDRESS",
            help="of a cluster of Dask (tcp://host:8786) whose workers read instead; they need this package, and the "
            "traces under the same path",
        )
        parser.add_argument(
            "--no-summaries", action="store_true", help="neither use nor keep TRACE.summary.json next to each trace"
        )
        parser.add_csv()
        parser.add_top(_ROWS, "ranks")
        parser.add_user_path()

    def mistake(self, options: argparse.Namespace) -> str | None:
        if options.spool is not None:
            return "--spool is of one trace: read that one alone, or move its spool next to it"
        if options.scheduler is not None and options.jobs is not None:
            return "--jobs are processes of this machine: not with --scheduler"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        from ..ranks import load_ranks
        from ..report.ranks import incomplete_sentences, ranks_data, write_ranks

        options = query.options
        with SlowProgress(Console(stderr=True), "comparing") as progress:
            progress.begin_pass("reading traces")
            ranks = load_ranks(
                options.traces,
                scheduler=options.scheduler,
                jobs=options.jobs,
                user_paths=options.user_path,
                keep_summaries=not options.no_summaries,
                progress=progress,
            )
        found, top = ranks._comparison, query.rows(_ROWS)
        if found.run is None:
            reasons = [sentence.rstrip(".") for sentence in incomplete_sentences(found)]
            more = f"; and {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
            raise TraceError("; ".join(reasons[:_REASONS]) + more)
        kind = None if options.device is None else named_device(options.device, found.kinds)
        if options.json:
            query.print_json("ranks", ranks_data(found, top, kind))
        elif options.csv:
            query.print_csv(ranks.table(kind).head(top))
        else:
            write_ranks(found, query.screen, top, kind)
        if options.json or options.csv:
            screen = Screen(Console(stderr=True), options.width)
            for sentence in incomplete_sentences(found):
                screen.text(f"INCOMPLETE  {sentence}", hanging=12)
        if not options.fail:
            return Exit.OK
        if found.findings:
            return Exit.FOUND
        return Exit.OK if found.leaks_answer is LeaksAnswer.NONE else Exit.UNKNOWN
