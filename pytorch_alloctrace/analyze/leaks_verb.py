"""The verb `leaks`: only that, as text or as the table of `Trace.leaks`."""

from __future__ import annotations

import argparse
import sys

import pandas as pd

from ..analysis import summarize
from ..report.screen import Screen
from ..report.verdict import write_leaks
from ..trace import Trace
from .forms import json_text, whole_stacks

EXIT_LEAKS = 1


def show_leaks(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """As verbs.show."""
    top = options.top or sys.maxsize
    device = options.device[0] if options.device else None
    if options.json or options.csv:
        leaks = trace.leaks(device=device, since=options.since, until=options.until)
        shown = leaks.head(top)
        text = json_text(shown, trace, options) if options.json else _csv(shown)
        return text, _status(len(leaks), options)
    is_whole = options.since is None and options.until is None
    within = None if is_whole else trace.range(options.since, options.until, device=device)
    summary = summarize(trace, devices=options.device, of_leaks=True, within=within)
    found = write_leaks(summary, screen, top, whole_stacks(trace, options))
    return "", _status(found, options)


def _status(leaks: int, options: argparse.Namespace) -> int:
    return EXIT_LEAKS if options.fail and leaks else 0


def _csv(leaks: pd.DataFrame) -> str:
    """The sites below each leak in one cell: FILE:LINE BYTES, separated by semicolons."""
    sites = ["; ".join(f"{site['filename']}:{site['line']} {site['bytes']}" for site in row) for row in leaks["sites"]]
    return leaks.assign(sites=sites).to_csv(index=False)
