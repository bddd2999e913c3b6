"""The verb `diff`: two runs, or two positions of one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..analysis.usage.comparison import compare, devices_at
from ..analysis.usage.composition import COMPOSITION_BY
from ..reading.positions import PEAKS
from ..reading.sites import Frame
from ..report import units
from ..report.difference import Changes, changes_data, write_changes
from ..report.stacks import frames_of
from .arguments import VerbParser, byte_count
from .verb import Exit, Query, Verb

_ROWS = 10


class Diff(Verb):
    name = "diff"
    summary = "what changed between two runs, or two positions of one"
    description = (
        "Compares what two runs of a program hold, or what one holds at two positions, the largest change first. Lines "
        "that moved between the runs, or were edited, are matched."
    )
    examples = (
        (
            "diff before.alloctrace after.alloctrace --fail-above 64MiB",
            "which lines hold more than before the change; exit status 1 when a device grew by more than 64 MiB",
        ),
        ("diff run.alloctrace --since step:10 --until step:20", "what ten steps left behind"),
    )
    traces = "TRACE [OTHER]"
    if_cut = "What was held after the break is not compared, and a peak may have come after it."

    def add_arguments(self, parser: VerbParser) -> None:
        parser.add_at("of two runs: the position of each to compare (default: peak)", None)
        parser.add_range("of one run: the first position", "of one run: the second position (default: end)")
        parser.add_by(COMPOSITION_BY)
        parser.add_device()
        parser.add_argument(
            "--fail-above",
            type=byte_count,
            metavar="SIZE",
            help="exit with status 1 when a device grew by more, such as 512MiB (0: at all), 3 when a trace has a part"
            " missing that could decide it",
        )
        parser.add_csv()
        parser.add_top(_ROWS, "rows of the table")
        parser.add_code()

    def mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 2:
            return f"diff compares two traces, not {len(options.traces)}"
        if len(options.traces) == 2 and (options.since, options.until) != (None, None):
            return "diff of two traces compares one position of each: --at POSITION"
        if len(options.traces) == 1 and options.since is None:
            return "diff needs a second trace, or two positions of one: --since POSITION [--until POSITION]"
        if len(options.traces) == 1 and options.at is not None:
            return "diff of one trace compares two positions of it: --since POSITION [--until POSITION], not --at"
        return super().mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        found = _between_runs(query) if len(query.traces) == 2 else _between_positions(query)
        limit = options.fail_above
        grew = [changes for changes in found if limit is not None and changes.change > limit]
        top = query.rows(_ROWS)
        if options.json:
            query.print_json([changes_data(changes, top) for changes in found])
        elif options.csv:
            tables = [changes.table.head(top).assign(device=changes.device) for changes in found]
            if tables:
                query.print_csv(pd.concat(tables, ignore_index=True))
        else:
            _write(found, grew, query, top)
        return Exit.OK if limit is None else self._judged(query, found, grew)

    def _judged(self, query: Query, found: Sequence[Changes], grew: Sequence[Changes]) -> Exit:
        before, after = (query.trace.integrity, query.traces[-1].integrity)
        until_end = query.options.until in (None, "end", *PEAKS)
        if len(query.traces) == 1:
            # What comes before the break is exact.
            known = not before.has_gaps and not (before.cut and until_end)
        elif grew:
            # Had the later run gone on, it could only have come to more.
            known = before.whole and not after.has_gaps
        else:
            known = before.whole and after.whole
        if known and found:
            return Exit.FOUND if grew else Exit.OK
        why = "a part of a trace is missing" if found else "nothing was allocated"
        if not (query.options.json or query.options.csv):
            query.screen.text(f"UNKNOWN  Whether a device grew by more than the limit: {why}.", hanging=9, style="bold")
        return Exit.UNKNOWN


def _write(found: Sequence[Changes], grew: Sequence[Changes], query: Query, top: int) -> None:
    screen, limit = query.screen, query.options.fail_above
    if not found:
        screen.text("Nothing was allocated in either.")
    for number, changes in enumerate(found):
        if number:
            screen.blank()
        write_changes(changes, screen, query.names, top)
    for changes in grew:
        said = f"{changes.device} grew by {units.size(changes.change)}: more than {units.size(limit)} (--fail-above)"
        screen.text(f"FAIL  {said}", hanging=6, style="bold red")


def _between_runs(query: Query) -> list[Changes]:
    (before, after), options = query.traces, query.options
    at = "peak" if options.at is None else options.at
    first, second = (f"{at} of {os.path.basename(trace.path)}" for trace in query.traces)

    def frames(row: dict[str, Any]) -> Sequence[Frame]:
        is_gone = pd.isna(row["stack_id_after"])
        trace, stack = (before, row["stack_id_before"]) if is_gone else (after, row["stack_id_after"])
        return frames_of(trace)(int(stack))

    shown = frames if options.all_frames else None
    # Each device on its own: the peak of one says nothing about another.
    devices = [options.device] if options.device else devices_at(before, after, at)
    tables = [compare(before, after, at=at, by=options.by, device=device) for device in devices]
    return [Changes(name, first, second, options.by, table, shown) for name, table in zip(devices, tables, strict=True)]


def _between_positions(query: Query) -> list[Changes]:
    trace, options = query.trace, query.options
    until = "end" if options.until is None else options.until
    frames = (lambda row: frames_of(trace)(int(row["stack_id"]))) if options.all_frames else None
    devices = [options.device] if options.device else trace.devices
    tables = [trace.diff(options.since, until, by=options.by, device=device) for device in devices]
    names = str(options.since), str(until)
    return [Changes(name, *names, options.by, table, frames) for name, table in zip(devices, tables, strict=True)]
