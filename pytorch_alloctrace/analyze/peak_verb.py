"""The verb `peak`."""

from __future__ import annotations

import argparse

from ..analysis.usage.composition import composition_of
from ..reading.positions import PEAKS, Position
from ..report.composition import Shown, composition_data, write_composition
from ..report.screen import Screen
from ..trace import Trace
from .forms import json_text, place_names

_DEFAULT_TOP = 10


def show_peak(trace: Trace, options: argparse.Namespace, screen: Screen) -> tuple[str, int]:
    """JSON or CSV to print, or "" where the text was written to the screen; and the exit status."""
    device = options.device[0] if options.device else None
    by, at = options.by or "line", options.at
    shown = _peak(trace, options, by, device) if at in PEAKS else _moment(trace, at, by, device)
    everything = max(len(shown.composition), 1)
    if options.json:
        return json_text(composition_data(shown, options.top or everything), trace, options), 0
    if options.csv:
        return shown.composition.head(options.top or everything).to_csv(index=False), 0
    names = place_names(trace, options)
    top = _DEFAULT_TOP if options.top is None else options.top or everything
    write_composition(shown, trace.begin_ns, screen, names, top)
    return "", 0


def _peak(trace: Trace, options: argparse.Namespace, by: str, device: str | None) -> Shown:
    at, since, until = options.at, options.since, options.until
    found = trace.peak("reserved" if at == "peak:reserved" else "allocated", device=device, since=since, until=until)
    known = {"line": found.composition, "phase": found.phases, "age": found.ages}
    table = known[by] if by in known else trace.composition(found.seq, by=by, device=found.device)
    return Shown(
        *(found.device, at, by, table, found.seq, found.time_ns, found.step, found.requested, found.reserved, found),
        *(since, until),
    )


def _moment(trace: Trace, at: Position, by: str, device: str | None) -> Shown:
    device = device or next(iter(trace.devices), "")
    until = trace.first_event_after(at, device)
    moment: Position = "end" if until is None else until - 1
    blocks = trace.live(moment, device=device)
    segments = trace.segments(moment, device=device)
    last = trace.integrity.events - 1 if until is None else until - 1
    return Shown(
        device=device,
        at=at,
        by=by,
        composition=composition_of(trace, blocks, by, until),
        seq=None if until is None else until - 1,
        time_ns=trace.time_ns(moment),
        step=trace.positions.step_at(max(last, 0)),
        requested=int(blocks["nbytes"].sum()),
        reserved=int(segments["total_size"].sum()) if len(segments) else None,
    )
