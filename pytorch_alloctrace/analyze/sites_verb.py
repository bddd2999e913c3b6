"""The verb `sites`."""

from __future__ import annotations

import argparse

from ..analysis.usage.last_steps import LastSteps
from ..report.lifetimes import write_lifetimes
from ..report.screen import Screen
from ..trace import Trace
from .forms import json_text, place_names

_DEFAULT_TOP = 5


def show_sites(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status."""
    device = options.device[0] if options.device else None
    by = options.by or "line"
    at = options.at if options.until is None else options.until
    table = trace.lifetimes(device=device, by=by, since=options.since, until=at)
    everything = max(len(table), 1)
    if options.json:
        return json_text(table.head(options.top or everything), trace, options), 0
    if options.csv:
        return table.head(options.top or everything).to_csv(index=False), 0
    if table.empty:
        screen.text("Nothing was allocated.")
        return "", 0
    first = 0 if options.since is None else trace.range(options.since, at, device=device).first
    steps = len(LastSteps.before(trace, trace.first_event_after(at, device), first).step_ends)
    names = place_names(trace, options)
    top = _DEFAULT_TOP if options.top is None else options.top or everything
    since = None if options.since is None else str(options.since)
    write_lifetimes(table, steps, str(at), by, screen, names, top, since=since)
    return "", 0
