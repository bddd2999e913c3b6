"""The verb `oom`."""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from ..report.oom import COLUMNS, oom_data, oom_row, write_ooms
from ..report.screen import Screen
from ..trace import Trace
from .forms import json_text, place_names

_SHOWN = 3
"""Refused requests in the text, unless --top says more: the last ones, of which the very last ended the run."""
_SITES = 20


def show_ooms(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status."""
    device = options.device[0] if options.device else None
    is_data = options.json or options.csv
    last = (None if is_data else _SHOWN) if options.top is None else options.top or None
    found = trace.ooms(device=device, since=options.since, until=options.until, last=last)
    names = place_names(trace, options)
    if options.json:
        return json_text([oom_data(one, names, _SITES) for one in found], trace, options), 0
    if options.csv:
        table = pd.DataFrame([oom_row(one) for one in found], columns=list(COLUMNS))
        # Whole numbers stay so where some are not told.
        return table.convert_dtypes().to_csv(index=False), 0
    if not found and (options.since, options.until) != (None, None):
        screen.text("No request ran out of memory in this range.")
    else:
        write_ooms(
            found,
            screen,
            names,
            trace.begin_ns,
            all_of=last is None or len(found) < last or len(found) == _count(trace, options, device),
        )
    return "", 0


def _count(trace: Trace, options: argparse.Namespace, device: str | None) -> int:
    """Refused requests in the range, those that are not shown included."""
    within = trace.range(options.since, options.until, device=device)
    events = trace.events(since=within.first, columns=("seq", "device"), kinds=("oom",))
    own = events if device is None else events[events["device"] == device]
    return int(within.has(own["seq"].to_numpy(np.int64)).sum())
