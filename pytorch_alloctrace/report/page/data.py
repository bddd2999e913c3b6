"""Everything that a page shows, as one piece of data."""

from __future__ import annotations

import os
from typing import Any

from ...analysis.summary import Summary, summarize
from ...reading.names import device_name
from ...reading.recorded import RecordedTrace
from ..site_names import SiteNames, printable
from .columns import Columns
from .curves import capacity, packed_curves, packed_positions
from .findings import packed_findings, packed_refusals, packed_sites
from .maps import holdings_of, maps_of, packed_holdings, packed_maps
from .moments import MOMENT, bounds_for, by_importance, choose_moments
from .names import PageStacks, RedactedNames, Redaction
from .what_if import packed_what_if

VERSION = 4
"""Of the data; the page's script knows this one alone."""
_TOP = 10


def page_data(trace: RecordedTrace, *, redact: bool = False, live: bool = False) -> tuple[str, str]:
    """The title of the page, and its data as the page's script reads them. live: a server is there that can be asked
    for `moment_data`."""
    bounds = bounds_for(trace.integrity.events, len(trace.devices))
    columns = Columns()
    summary = summarize(trace, top=_TOP)
    kind = RedactedNames if redact else SiteNames
    names = kind(summary.program.working_directory)
    stacks = PageStacks(trace.stacks, names)
    shown = trace.devices[: bounds.devices]
    moments = choose_moments(trace, summary, shown, bounds.moments) if shown else []
    seqs = [moment.seq for moment in moments]
    important = by_importance(moments)
    devices = []
    for device in shown:
        holdings = holdings_of(trace, device, seqs, bounds)
        maps = maps_of(trace, device, seqs, important, holdings, stacks, bounds)
        devices.append(
            {
                "device": device,
                "capacity": capacity(trace, device),
                "name": _hardware_name(trace, device),
                "holdings": packed_holdings(holdings, stacks, columns),
                "maps": packed_maps(maps, holdings, stacks, columns),
                "sites": packed_sites(trace, device, stacks, bounds),
                "stacks_put_together": sum(1 for stack, shown in holdings.shown_under.items() if stack != shown),
            }
        )
    refusals, earlier_refusals = packed_refusals(trace, names, stacks, bounds)
    made: dict[str, Any] = {
        "version": VERSION,
        "redacted": redact,
        "live": live,
        "header": _header(trace, summary, names, redact),
        "findings": packed_findings(trace, summary, names, stacks),
        "seconds": summary.seconds,
        "duration": max(trace.end_ns - trace.begin_ns, 1),
        "moments": {
            "seq": columns.add(seqs),
            "time": columns.add([max(trace.time_ns(seq) - trace.begin_ns, 0) for seq in seqs]),
            "step": columns.add([_step(trace, seq) for seq in seqs], differences=False),
            "reasons": [moment.reasons for moment in moments],
        },
        "positions": packed_positions(trace, bounds, columns),
        "curves": packed_curves(trace, shown, bounds, columns),
        "devices": devices,
        "devices_left_out": len(trace.devices) - len(shown),
        "refusals": refusals,
        "earlier_refusals": earlier_refusals,
        "what_if": packed_what_if(trace, shown, stacks),
    }
    made["stacks"] = stacks.packed(columns)
    made["texts"] = stacks.texts.all
    if redact:
        made = Redaction([str(trace.path), summary.program.path], summary.program.working_directory).of(made)
    return str(made["header"]["title"]), columns.packed(made)


def moment_data(trace: RecordedTrace, seq: int) -> str:
    """What a page that is live asks for: the memory after any event, in full detail."""
    bounds = MOMENT
    columns = Columns()
    stacks = PageStacks(trace.stacks, SiteNames(trace.working_directory))
    devices = []
    for device in trace.devices[: bounds.devices]:
        holdings = holdings_of(trace, device, [seq], bounds)
        maps = maps_of(trace, device, [seq], [0], holdings, stacks, bounds)
        packed = packed_maps(maps, holdings, stacks, columns)
        devices.append({"device": device, "holdings": packed_holdings(holdings, stacks, columns), "maps": packed})
    step = _step(trace, seq)
    made: dict[str, Any] = {
        "version": VERSION,
        "seq": seq,
        "time": max(trace.time_ns(seq) - trace.begin_ns, 0),
        "step": None if step < 0 else step,
        "devices": devices,
    }
    made["stacks"] = stacks.packed(columns)
    made["texts"] = stacks.texts.all
    return columns.packed(made)


def _step(trace: RecordedTrace, seq: int) -> int:
    step = trace.positions.step_at(seq)
    return -1 if step is None else step


def _hardware_name(trace: RecordedTrace, device: str) -> str:
    return next(
        (one.name for one in trace.reader.devices() if device_name(one.device_type, one.device_index) == device), ""
    )


def _header(trace: RecordedTrace, summary: Summary, names: SiteNames, redact: bool) -> dict[str, Any]:
    """What the trace says about the program and about itself."""
    program = summary.program
    facts = {
        "torch": program.torch,
        "CUDA": program.cuda,
        "Python": program.python,
        "host": "" if redact else program.host,
        "rank": program.rank if program.rank not in ("", "0") else "",
        "stacks": program.stacks,
        "trace": os.path.basename(summary.trace),
    }
    return {
        "title": printable(os.path.basename(names.file(program.path)) or os.path.basename(summary.trace)),
        "command": names.command(program),
        "facts": [[name, str(value)] for name, value in facts.items() if value],
        "begin": summary.begin_ns // 1_000_000,
        "events": summary.integrity.events,
        "end_seq": trace.end_seq,
        "file_bytes": summary.file_bytes,
        "steps": summary.steps,
        "whole": summary.integrity.whole,
        "integrity": str(summary.integrity),
        "recorded_devices": list(program.recorded_devices),
    }
