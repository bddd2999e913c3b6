"""The verb `sites`."""

from __future__ import annotations

import argparse

from ..analysis.window import Window
from ..report.lifetimes import write_lifetimes
from ..report.screen import Screen
from ..trace import Trace
from .forms import json_text, place_names

_DEFAULT_TOP = 5


def show_sites(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status."""
    device = options.device[0] if options.device else None
    by = options.by or "line"
    table = trace.lifetimes(device, by, at=options.at)
    everything = max(len(table), 1)
    if options.json:
        return json_text(table.head(options.top or everything), trace, options), 0
    if options.csv:
        return table.head(options.top or everything).to_csv(index=False), 0
    if table.empty:
        screen.text("Nothing was allocated.")
        return "", 0
    steps = len(Window.before(trace, trace.first_event_after(options.at, device)).step_ends)
    names = place_names(trace, options)
    top = _DEFAULT_TOP if options.top is None else options.top or everything
    write_lifetimes(table, steps, str(options.at), by, screen, names, top)
    return "", 0
