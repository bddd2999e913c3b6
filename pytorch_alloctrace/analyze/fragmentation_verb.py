"""The verb `fragmentation`."""

from __future__ import annotations

import argparse

import pandas as pd

from ..analysis.free_memory.fragmentation import Fragmentation
from ..report.fragmentation import fragmentation_data, write_fragmentation
from ..report.screen import Screen
from ..trace import Trace
from .forms import json_text, place_names

_DEFAULT_TOP = 5


def show_fragmentation(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status."""
    device = options.device[0] if options.device else None
    top = _DEFAULT_TOP if options.top is None else options.top or max(trace.integrity.events, 1)
    devices, at = _devices(trace, options.at, device), options.at
    if len(devices) > 1 and (until := trace.first_event_after(at)) is not None:
        at = until - 1  # a peak is one device's: the others are shown as they were then
    found = [trace.fragmentation(at, device=name) for name in devices]
    if options.json:
        return json_text([fragmentation_data(one, top) for one in found], trace, options), 0
    if options.csv:
        return _pinners(found).to_csv(index=False), 0
    names = place_names(trace, options)
    for number, one in enumerate(found):
        if number:
            screen.blank()
        blocks = trace.blocks(at, device=one.device)
        write_fragmentation(one, blocks, trace.timeline(device=one.device), screen, names, top)
    return "", 0


def _devices(trace: Trace, at: int | str, device: str | None) -> list[str]:
    """The device asked for; else all that have segments at that moment, or, where none has, the first there is."""
    if device is not None:
        return [device]
    reserved = trace.segments(at).groupby("device")["total_size"].sum().sort_values(ascending=False)
    return [str(name) for name in reserved.index] or trace.devices[:1]


def _pinners(found: list[Fragmentation]) -> pd.DataFrame:
    tables = [one.pinners.assign(device=one.device) for one in found]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
