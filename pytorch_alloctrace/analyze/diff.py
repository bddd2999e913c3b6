"""Command `diff`: comparison of two runs, or of two positions of one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..analysis.limit import GrowthLimit
from ..analysis.usage.comparison import compare, devices_at, differences, steps_between
from ..analysis.usage.composition import COMPOSITION_BY
from ..analysis.usage.peak_move import find_peak_move
from ..errors import PositionError
from ..reading.positions import PEAKS
from ..reading.sites import Frame
from ..report.difference import Changes, changes_data, grew_sentence, write_changes
from ..report.markdown import changes_markdown
from ..report.site_names import frames_of
from .arguments import CommandParser
from .trace_command import Exit, Query, TraceCommand

_ROWS = 10


class Diff(TraceCommand):
    progress_label = "comparing"
    description = (
        "Compares the memory of two runs of a program, or of one run at two positions, the largest change first. Lines "
        "that moved or were edited between the runs are matched."
    )
    examples = (
        (
            "diff before.alloctrace after.alloctrace --fail-above 64MiB",
            "which lines hold more than before the change; exit status 1 when a device grew by more than 64 MiB",
        ),
        ("diff run.alloctrace --since step:10 --until step:20", "what ten steps left behind"),
        ("diff run.alloctrace --in validation --fail-above 0", "what all validations together left behind"),
    )
    traces = "TRACE [OTHER]"
    if_truncated = "What was held after the break is not compared, and a peak may have come after it."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_at("of two runs: the position of each to compare (default: peak)", None)
        parser.add_range("of one run: the first position", "of one run: the second position (default: end)")
        parser.add_by(COMPOSITION_BY)
        parser.add_device()
        parser.add_fail_above("a device grew by", "what it held before")
        parser.add_csv()
        parser.add_markdown()
        parser.add_top(_ROWS, "rows of the table")
        parser.add_code()

    def find_mistake(self, options: argparse.Namespace) -> str | None:
        if len(options.traces) > 2:
            return f"diff compares two traces, not {len(options.traces)}"
        if len(options.traces) == 2 and (options.since, options.until, options.region) != (None, None, None):
            return "diff of two traces compares one position of each: use --at POSITION"
        if len(options.traces) == 1 and options.since is None and options.region is None:
            return "diff needs a second trace, or two positions of one: --since POSITION [--until POSITION]"
        if options.fail_above is not None and options.fail_above.per_step and options.fail_above.unit != "step":
            return "diff does not count iterations: use a limit with /step, or without a unit"
        if len(options.traces) == 2 and options.fail_above is not None and options.fail_above.per_step:
            return "growth per step is between two positions of one run: give --since, or a limit without /step"
        if len(options.traces) == 1 and options.at is not None:
            return "diff of one trace compares two positions of it: --since POSITION [--until POSITION], not --at"
        return super().find_mistake(options)

    def run(self, query: Query) -> Exit:
        options = query.options
        devices = _compare_runs(query) if len(query.traces) == 2 else _compare_positions(query)
        limit = options.fail_above
        grown = [changes for changes in devices if limit is not None and _is_above(limit, changes)]
        top = query.rows(_ROWS)
        if options.json:
            query.print_json("diff", [changes_data(changes, top) for changes in devices])
        elif options.csv:
            tables = [changes.table.head(top).assign(device=changes.device) for changes in devices]
            if tables:
                query.print_csv(pd.concat(tables, ignore_index=True))
        elif options.markdown:
            sentences = [grew_sentence(changes, limit) for changes in grown]
            query.print_text(changes_markdown(devices, sentences, query.names, top))
        else:
            _write_text(devices, grown, query, top)
        return Exit.OK if limit is None else self._judge(query, devices, grown)

    def _judge(self, query: Query, devices: Sequence[Changes], grown: Sequence[Changes]) -> Exit:
        before, after = (query.trace.integrity, query.traces[-1].integrity)
        # In a truncated trace, later regions of the name may be missing.
        until_end = query.options.region is not None or query.options.until in (None, "end", *PEAKS)
        if len(query.traces) == 1:
            # Everything before the break is exact.
            is_certain = not before.has_gaps and not (before.is_truncated and until_end)
        elif grown:
            # The missing end of the later run can only increase the growth.
            is_certain = before.is_complete and not after.has_gaps
        else:
            is_certain = before.is_complete and after.is_complete
        if is_certain and devices:
            return Exit.FOUND if grown else Exit.OK
        reason = "a part of a trace is missing" if devices else "nothing was allocated"
        sentence = f"Cannot tell whether a device grew by more than the limit: {reason}."
        if query.options.markdown:
            query.print_text(f"\n**UNKNOWN** {sentence}\n")
        elif not (query.options.json or query.options.csv):
            query.screen.text(f"UNKNOWN  {sentence}", hanging=9, style="bold")
        return Exit.UNKNOWN


def _write_text(devices: Sequence[Changes], grown: Sequence[Changes], query: Query, top: int) -> None:
    screen = query.screen
    if not devices:
        screen.text("Nothing was allocated in either.")
    for number, changes in enumerate(devices):
        if number:
            screen.blank()
        write_changes(changes, screen, query.names, top)
    for changes in grown:
        sentence = grew_sentence(changes, query.options.fail_above)
        screen.text(f"FAIL  {sentence}", hanging=6, style="bold red")


def _is_above(limit: GrowthLimit, changes: Changes) -> bool:
    if limit.per_step and not changes.steps:
        raise PositionError(f"{limit.text} cannot be judged: no step ends between {changes.before} and {changes.after}")
    return limit.is_exceeded(changes.change, changes.bytes_before, changes.per_step)


def _compare_runs(query: Query) -> list[Changes]:
    (before, after), options = query.traces, query.options
    at = "peak" if options.at is None else options.at
    name_before, name_after = (f"{at} of {Path(trace.path).name}" for trace in query.traces)

    def frames(row: dict[str, Any]) -> Sequence[Frame]:
        is_removed = pd.isna(row["stack_id_after"])
        trace, stack = (before, row["stack_id_before"]) if is_removed else (after, row["stack_id_after"])
        return frames_of(trace)(int(stack))

    row_frames = frames if options.all_frames else None
    # One comparison per device: each has its own peak.
    devices = [options.device] if options.device else devices_at(before, after, at)
    tables = [compare(before, after, at=at, by=query.by, device=device) for device in devices]
    is_text = not (options.json or options.csv)
    changes = []
    for name, table in zip(devices, tables, strict=True):
        lines = table if query.by == "line" else None
        move = find_peak_move(before, after, name, lines) if at == "peak" and is_text else None
        changes.append(Changes(name, name_before, name_after, query.by, table, row_frames, peak_move=move))
    return changes


def _compare_positions(query: Query) -> list[Changes]:
    trace, options = query.trace, query.options
    ranges = [(0 if since is None else since, "end" if until is None else until) for since, until in query.ranges]
    frames = (lambda row: frames_of(trace)(int(row["stack_id"]))) if options.all_frames else None
    devices = [options.device] if options.device else trace.devices
    tables = [differences(trace, ranges, device=device, by=query.by) for device in devices]
    (since, until), count = ranges[0], len(ranges)
    names = str(since), str(until)
    if count > 1:
        regions = f"of all {count:,} regions {options.region!r}"
        names = f"the beginnings {regions}", f"the ends {regions}"
    steps = sum(steps_between(trace, since, until) for since, until in ranges)
    return [Changes(name, *names, query.by, table, frames, steps) for name, table in zip(devices, tables, strict=True)]
