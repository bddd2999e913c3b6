"""The verb `diff`: two runs, or two moments of one."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..analysis.usage.comparison import compare, has_position
from ..reading.sites import Frame
from ..report import units
from ..report.difference import Changes, changes_data, write_changes
from ..report.screen import Screen
from ..report.site_names import SiteNames
from ..report.stacks import frames_of
from ..trace import Trace

_DEFAULT_TOP = 10
_EXIT_GREW = 1


def show_diff(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status: 1 where a device grew
    by more than --fail-above. options.other: the second trace, opened, or None."""
    other: Trace = options.other or trace
    found = _between_runs(trace, other, options) if options.other else _between_moments(trace, options)
    limit = options.fail_above
    grew = [changes for changes in found if limit is not None and changes.change > limit]
    status = _EXIT_GREW if grew else 0
    top = options.top or max([1, *(len(changes.table) for changes in found)])
    if options.json:
        return json.dumps([changes_data(changes, top) for changes in found], indent=1) + "\n", status
    if options.csv:
        tables = [changes.table.head(top).assign(device=changes.device) for changes in found]
        return (pd.concat(tables, ignore_index=True).to_csv(index=False) if tables else ""), status
    names = SiteNames(str(other.header.get("working_directory", "")))
    if not found:
        screen.text("Nothing was allocated in either.")
    for number, changes in enumerate(found):
        if number:
            screen.blank()
        write_changes(changes, screen, names, _DEFAULT_TOP if options.top is None else top)
    for changes in grew:
        said = f"{changes.device} grew by {units.size(changes.change)}: more than {units.size(limit)} (--fail-above)"
        screen.text(f"FAIL  {said}", hanging=6, style="bold red")
    return "", status


def _between_runs(before: Trace, after: Trace, options: argparse.Namespace) -> list[Changes]:
    """Each device at a moment of its own: the peak of one says nothing of another."""
    names = dict.fromkeys([*after.devices, *before.devices])
    told = [name for name in names if has_position(before, options.at, name) or has_position(after, options.at, name)]
    devices = options.device or told
    by = options.by or "line"
    first, second = (f"{options.at} of {os.path.basename(trace.path)}" for trace in (before, after))
    tables = [compare(before, after, at=options.at, by=by, device=device) for device in devices]

    def frames(row: dict[str, Any]) -> Sequence[Frame]:
        is_gone = pd.isna(row["stack_id_after"])
        trace, stack = (before, row["stack_id_before"]) if is_gone else (after, row["stack_id_after"])
        return frames_of(trace)(int(stack))

    shown = frames if options.all_frames else None
    return [Changes(device, first, second, by, table, shown) for device, table in zip(devices, tables, strict=True)]


def _between_moments(trace: Trace, options: argparse.Namespace) -> list[Changes]:
    until = "end" if options.until is None else options.until
    by = options.by or "line"
    frames = (lambda row: frames_of(trace)(int(row["stack_id"]))) if options.all_frames else None
    devices = options.device or trace.devices
    tables = [trace.diff(options.since, until, device=device, by=by) for device in devices]
    return [
        Changes(device, str(options.since), str(until), by, table, frames)
        for device, table in zip(devices, tables, strict=True)
    ]
