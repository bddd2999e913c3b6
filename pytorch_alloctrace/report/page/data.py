"""Data of a page: everything that the script of the page shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...analysis.summary import Summary, summarize
from ...reading.names import ROLES_SHOWN, device_name
from ...reading.recorded import RecordedTrace
from ...reading.source_code import UserCode
from ...reading.timeline import POINTS
from ..site_names import SiteNames, printable
from .columns import Columns
from .curves import pack_curves, pack_positions
from .findings import pack_failed_allocations, pack_findings, pack_sites
from .layers import Lines, choose_lines, pack_layers
from .maps import collect_holdings, collect_maps, pack_holdings, pack_maps
from .names import NAMES, NeutralNames, PageStacks, Redact, RedactedNames, Redaction
from .snapshots import SERVED_SNAPSHOT_BOUNDS, choose_bounds, choose_snapshots, rank_snapshots
from .what_if import pack_what_if

VERSION = 6
"""Version of the data format. The page's script refuses every other version."""
_SUMMARY_ROWS = 10


class PageData(NamedTuple):
    """Data of a page, and what the answers to its requests need."""

    title: str
    packed: str
    lines: Mapping[str, Lines]
    """Lines with a timeline, by device."""


def build_page_data(trace: RecordedTrace, *, redact: Redact = False, live: bool = False) -> PageData:
    """Return the data of the page.

    `redact` omits source, arguments, host and folders; NAMES also replaces names of the program. `live` lets the page
    request `build_snapshot_data` and `build_layers_data`.
    """
    bounds = choose_bounds(trace.integrity.events, len(trace.devices))
    columns = Columns()
    summary = summarize(trace, top=_SUMMARY_ROWS)
    names = _create_names(trace, redact)
    stacks = PageStacks(trace.stacks, names)
    shown_devices = trace.devices[: bounds.devices]
    snapshots = choose_snapshots(trace, summary, names, shown_devices, bounds.snapshots) if shown_devices else []
    seqs = [snapshot.seq for snapshot in snapshots]
    ranked = rank_snapshots(snapshots)
    devices, lines = [], {}
    for device in shown_devices:
        holdings = collect_holdings(trace, device, seqs, bounds)
        lines[device] = choose_lines(trace, holdings)
        maps = collect_maps(trace, device, seqs, ranked, holdings, stacks, bounds)
        devices.append(
            {
                "device": device,
                "capacity": trace.device_bytes(device),
                "name": _hardware_name(trace, device),
                "holdings": pack_holdings(holdings, stacks, columns),
                "maps": pack_maps(maps, holdings, stacks, columns),
                "sites": pack_sites(trace, device, stacks, bounds),
                "lines": [stacks.site(stack) for stack in lines[device].stack_ids],
                "stacks_put_together": sum(
                    1 for stack, representative in holdings.representatives.items() if stack != representative
                ),
            }
        )
    duration = max(trace.end_ns - trace.begin_ns, 1)
    failed_allocations, earlier_count = pack_failed_allocations(trace, names, stacks, bounds)
    data: dict[str, Any] = {
        "version": VERSION,
        "redacted": bool(redact),
        "live": live,
        "header": _header(trace, summary, names, redact),
        "findings": pack_findings(trace, summary, names, stacks),
        "seconds": summary.seconds,
        "duration": duration,
        "snapshots": {
            "seq": columns.add(seqs),
            "time": columns.add([max(trace.time_ns(seq) - trace.begin_ns, 0) for seq in seqs]),
            "step": columns.add([_step_or_missing(trace, seq) for seq in seqs], differences=False),
            "reasons": [snapshot.reasons for snapshot in snapshots],
        },
        "positions": pack_positions(trace, names, bounds, columns),
        "curves": pack_curves(trace, shown_devices, bounds, columns),
        "roles": ROLES_SHOWN,
        "layers": pack_layers(trace, lines, columns, _first_use_ns(trace, shown_devices), duration),
        "devices": devices,
        "devices_left_out": len(trace.devices) - len(shown_devices),
        "failed_allocations": failed_allocations,
        "earlier_failures": earlier_count,
        "what_if": pack_what_if(trace, shown_devices, stacks),
    }
    data["stacks"] = stacks.pack(columns)
    data["texts"] = stacks.texts.all
    if redact:
        redaction = Redaction([str(trace.path), summary.program.path], summary.program.working_directory)
        data = redaction.redact(data)
    return PageData(str(data["header"]["title"]), columns.pack(data), lines)


def build_layers_data(trace: RecordedTrace, lines: Mapping[str, Lines], begin_ns: int, end_ns: int) -> str:
    """Return the packed memory by role and line between two times since the recording began, for a served page."""
    columns = Columns()
    return columns.pack({"version": VERSION, **pack_layers(trace, lines, columns, begin_ns, end_ns)})


def build_snapshot_data(trace: RecordedTrace, seq: int) -> str:
    """Return the packed memory state after any event, in full detail, for a served page."""
    bounds = SERVED_SNAPSHOT_BOUNDS
    columns = Columns()
    stacks = PageStacks(trace.stacks, SiteNames(trace.working_directory))
    devices = []
    for device in trace.devices[: bounds.devices]:
        holdings = collect_holdings(trace, device, [seq], bounds)
        maps = collect_maps(trace, device, [seq], [0], holdings, stacks, bounds)
        packed_maps = pack_maps(maps, holdings, stacks, columns)
        devices.append({"device": device, "holdings": pack_holdings(holdings, stacks, columns), "maps": packed_maps})
    step = _step_or_missing(trace, seq)
    data: dict[str, Any] = {
        "version": VERSION,
        "seq": seq,
        "time": max(trace.time_ns(seq) - trace.begin_ns, 0),
        "step": None if step < 0 else step,
        "devices": devices,
    }
    data["stacks"] = stacks.pack(columns)
    data["texts"] = stacks.texts.all
    return columns.pack(data)


def _create_names(trace: RecordedTrace, redact: Redact) -> SiteNames:
    folder = trace.working_directory
    if redact == NAMES:
        return NeutralNames(folder, UserCode.of_header(trace.header, trace.user_paths).is_user_file, trace.stacks)
    return RedactedNames(folder) if redact else SiteNames(folder)


def _first_use_ns(trace: RecordedTrace, devices: Sequence[str]) -> int:
    """Return a time shortly before the first allocation, in nanoseconds since the recording began."""
    first = POINTS
    for device in devices:
        used = np.flatnonzero(trace.timeline(POINTS, device)["requested_bytes_max"])
        first = min(first, int(used[0]) if len(used) else POINTS)
    return (trace.end_ns - trace.begin_ns) * (first % POINTS) // POINTS


def _step_or_missing(trace: RecordedTrace, seq: int) -> int:
    step = trace.positions.step_at(seq)
    return -1 if step is None else step


def _hardware_name(trace: RecordedTrace, device: str) -> str:
    return next(
        (
            hardware.name
            for hardware in trace.reader.devices()
            if device_name(hardware.device_type, hardware.device_index) == device
        ),
        "",
    )


def _header(trace: RecordedTrace, summary: Summary, names: SiteNames, redact: Redact) -> dict[str, Any]:
    program = summary.program
    facts = {
        "torch": program.torch,
        "CUDA": program.cuda,
        "Python": program.python,
        "host": "" if redact else program.host,
        "rank": program.rank if program.rank not in ("", "0") else "",
        "stacks": program.stacks,
        "trace": "" if redact == NAMES else Path(summary.trace).name,
    }
    return {
        "title": printable(os.path.basename(names.file(program.path)) or facts["trace"]),
        "command": names.command(program),
        "facts": [[name, str(value)] for name, value in facts.items() if value],
        "begin": summary.begin_ns // 1_000_000,
        "events": summary.integrity.events,
        "end_seq": trace.end_seq,
        "file_bytes": summary.file_bytes,
        "steps": summary.steps,
        "whole": summary.integrity.is_complete,
        "integrity": str(summary.integrity),
        "recorded_devices": list(program.recorded_devices),
    }
