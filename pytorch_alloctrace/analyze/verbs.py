"""The verbs: each makes its table, in the form that was asked for."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

import pandas as pd

from ..errors import PositionError
from ..report.screen import Screen
from ..report.segments import write_blocks, write_segments
from ..report.timeline import write_timeline
from ..report.verification import write_verification
from ..trace import Trace
from .diff_verb import show_diff
from .forms import json_text, place_names
from .fragmentation_verb import show_fragmentation
from .leaks_verb import show_leaks
from .oom_verb import show_ooms
from .peak_verb import show_peak
from .sites_verb import show_sites

EXIT_FOUND = 1
_POINTS = 2000
_OF_ITS_OWN = {
    "leaks": show_leaks,
    "peak": show_peak,
    "diff": show_diff,
    "sites": show_sites,
    "fragmentation": show_fragmentation,
    "oom": show_ooms,
}
"""Verbs with a module each."""


def show(verb: str, trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status."""
    if verb in _OF_ITS_OWN:
        return _OF_ITS_OWN[verb](trace, options, screen)
    device = options.device[0] if options.device else None
    top = options.top if options.top is not None else 20
    rows = top or sys.maxsize
    if verb == "verify":
        found = trace.verify()
        status = 0 if found.ok else EXIT_FOUND
        if options.json:
            return json.dumps({"ok": found.ok, **dataclasses.asdict(found)}, indent=2) + "\n", status
        write_verification(found, screen)
        return "", status
    if verb == "timeline":
        table: pd.DataFrame = trace.timeline(options.points or _POINTS, device=device)
        table = _between(table, trace, options)
        if not _is_data(options):
            write_timeline(table, screen)
    elif verb == "segments":
        table = trace.segments(options.at, device=device)
        if not _is_data(options):
            write_segments(table, trace.blocks(options.at, device=device), screen, rows)
    else:
        table = trace.blocks(options.at, device=device)
        if not _is_data(options):
            write_blocks(table, trace, screen, place_names(trace, options), rows)
        else:
            sites = pd.DataFrame([trace.stacks.describe(int(stack), "line") for stack in table["stack_id"]])
            table = pd.concat([table, sites[["filename", "line", "function"]]], axis=1) if len(table) else table
    if options.json:
        return json_text(table, trace, options), 0
    return (table.to_csv(index=False) if options.csv else ""), 0


def _is_data(options: argparse.Namespace) -> bool:
    return bool(options.json or options.csv)


def _between(table: pd.DataFrame, trace: Trace, options: argparse.Namespace) -> pd.DataFrame:
    """The intervals from --since to --until."""
    begin, end = options.since, options.until
    if (begin, end) == (None, None):
        return table
    trace.range(begin, end)
    if begin is not None:
        table = table[table["time_ns"] >= trace.time_ns(begin)]
    if end is not None:
        table = table[table["time_ns"] <= trace.time_ns(end)]
    if table.empty:
        raise PositionError(f"no interval begins between {begin} and {end}: they are too long (--points)")
    return table.reset_index(drop=True)
