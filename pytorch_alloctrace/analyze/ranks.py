"""Command `ranks`: all ranks of a distributed run. A command line with a folder or several traces runs it, too."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence

from rich.console import Console

from ..analysis.ranks.comparison import Comparison
from ..analysis.summary import LeaksAnswer
from ..errors import TraceError
from ..parser import PROGRAM
from ..reading.names import named_device
from ..report.progress import SlowProgress
from ..report.screen import Screen
from .arguments import CommandParser, parse_positive
from .trace_command import Exit, Query, TraceCommand

_ROWS = 10
_MAX_REASONS = 4
"""Maximum number of unreadable traces that the error names."""


class Ranks(TraceCommand):
    description = (
        "Reads the traces of all ranks in parallel processes, and shows which rank differs, in which line and since "
        "which step. With a folder or the traces of one run, the command can be omitted."
    )
    examples = (
        ("traces/", "the ranks whose traces are in a folder"),
        (
            "ranks traces/ --fail",
            "the same; exit status 1 when a rank leaks or differs, 3 when a rank cannot be judged",
        ),
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
            "a rank has no complete trace or cannot be judged",
        )
        parser.add_argument(
            "--jobs", type=parse_positive, metavar="N", help="number of reading processes (default: one per core)"
        )
        parser.add_argument(
            "--scheduler",
            metavar="ADDRESS",
            help="address of a Dask cluster (tcp://host:8786) whose workers read instead; they need this package, and "
            "the traces under the same path",
        )
        parser.add_argument(
            "--no-summaries", action="store_true", help="neither use nor keep TRACE.summary.json next to each trace"
        )
        parser.add_csv()
        parser.add_top(_ROWS, "ranks")
        parser.add_user_path()

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if options.spool is not None:
            return "--spool belongs to one trace: read that trace alone, or move its spool next to it"
        if options.scheduler is not None and options.jobs is not None:
            return "--jobs are processes of this machine: omit it with --scheduler"
        return super().find_mistake(options)

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
        comparison, top = ranks._comparison, query.rows(_ROWS)
        if comparison.run is None:
            reasons = [sentence.rstrip(".") for sentence in incomplete_sentences(comparison)]
            more = f"; and {len(reasons) - _MAX_REASONS} more" if len(reasons) > _MAX_REASONS else ""
            raise TraceError("; ".join(reasons[:_MAX_REASONS]) + more)
        if options.omitted and _are_two_runs(options.traces, comparison):
            diff = f"{PROGRAM} diff {' '.join(map(shlex.quote, options.traces))}"
            raise TraceError(f"the two traces are not ranks of one run; to compare two runs: {diff}")
        kind = None if options.device is None else named_device(options.device, comparison.kinds)
        if options.json:
            query.print_json("ranks", ranks_data(comparison, top, kind))
        elif options.csv:
            query.print_csv(ranks.table(kind).head(top))
        else:
            write_ranks(comparison, query.screen, top, kind)
        if options.json or options.csv:
            screen = Screen(Console(stderr=True), options.width)
            for sentence in incomplete_sentences(comparison):
                screen.text(f"INCOMPLETE  {sentence}", hanging=12)
        if not options.fail:
            return Exit.OK
        if comparison.findings:
            return Exit.FOUND
        return Exit.OK if comparison.leaks_answer is LeaksAnswer.NONE else Exit.UNKNOWN


def _are_two_runs(paths: Sequence[str], comparison: Comparison) -> bool:
    """Return whether the paths are two traces that can be read and are not ranks of one run."""
    if len(paths) != 2 or any(map(os.path.isdir, paths)) or comparison.run is None:
        return False
    is_other = any(trace.why in ("copy", "other run", "no rank") for trace in comparison.left_out)
    return is_other or any(summary.rank is None for summary in comparison.run.summaries)
