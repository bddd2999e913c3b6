"""The verdict as JSON, for programs.

One object. All bytes are integers and mean requested bytes; rates (`bytes_per_...`) are rounded to whole bytes; seconds
are numbers; what is not known is null. Later versions may add fields, and change or remove none: `format_version` stays
1 while that holds. Tables of lines have as many rows as --top allows.

format, format_version
    "pytorch_alloctrace.verdict", 1
trace
    path, file_bytes, begin_ns (since 1970-01-01 UTC), seconds, events, steps, unmatched_frees
program
    path, arguments, working_directory, torch, cuda, python, host, process, rank, recorded_devices, stacks
integrity
    state ("complete", "truncated", "gaps", "corrupt"), text, and the counts of `Integrity`
findings: a list, most pressing first
    kind ("oom", "leak", "no_leak", "not_judged", "fragmentation", "cache", "rounding", "pending", "churn", "outside":
    see `analysis.conditions`), title, device, bytes, confidence (0 to 1), site, stack_id, sentences
    of a leak also: leak_kind ("survivors"; "growing": one buffer, replaced by ever larger ones), unit ("step",
    "second"), bytes_per_unit, blocks, bytes_at_end, units_with_survivors, units_judged, windows_with_survivors (of a
    growing one: in which it grew), windows_judged, oldest_age (in units), forecast_seconds (until the device is full),
    live_bytes_over_run (of its sites: of those blocks that survive; of a growing one after each step it grew in),
    path (frames, innermost first: see `Leak`), path_share (0 to 1), sites (site, stack_id, bytes_per_unit, bytes,
    blocks)
devices: a list, highest peak first
    device, allocations, bytes_allocated
    peak, end: bytes, blocks, event, seconds, step, sites (site, bytes, backward_bytes, blocks, stack), more_sites,
        more_bytes
    growth: null without steps, else steps, warmup, first_bytes, median_bytes, last_bytes, lowest_bytes, highest_bytes,
    bytes_per_step, seconds_per_step, samples
    growing: site, stack_id, before_bytes, after_bytes, bytes_per_unit
    leaks_judged, live_bytes_over_time (equal intervals, of each the highest)
a site: filename, line, function, source, user (false: library code stands in)
a frame: function, filename, line, source
frames: with --all-frames, of whatever has a stack: all of it, innermost frame first
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ..analysis.leaks.growth import StepGrowth
from ..analysis.leaks.leak import Leak
from ..analysis.summary import DeviceSummary, Holding, Summary
from ..reading.site_tables import Site
from .findings import Finding, diagnosis
from .stacks import Frames, with_frames

FORMAT = "pytorch_alloctrace.verdict"
FORMAT_VERSION = 1


def verdict_json(summary: Summary, frames: Frames | None = None) -> str:
    """The summary as indented JSON, ASCII only. frames: where whole stacks are to be in it."""
    return json.dumps(with_frames(verdict(summary), frames), indent=2, allow_nan=False)


def verdict(summary: Summary) -> dict[str, Any]:
    """The summary as plain dicts, lists, strings and numbers; see the module for the fields."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "trace": {
            "path": summary.trace,
            "file_bytes": summary.file_bytes,
            "begin_ns": summary.begin_ns,
            "seconds": summary.seconds,
            "events": summary.integrity.events,
            "steps": summary.steps,
            "unmatched_frees": summary.unmatched_frees,
        },
        "program": dataclasses.asdict(summary.program),
        "integrity": {**dataclasses.asdict(summary.integrity), "text": str(summary.integrity)},
        "findings": [_finding(finding) for finding in diagnosis(summary)],
        "devices": [_device(device) for device in summary.devices],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "title": finding.title,
        "device": finding.device,
        "bytes": finding.bytes,
        "confidence": None if finding.confidence is None else round(finding.confidence, 4),
        "site": _site(finding.site),
        "stack_id": finding.stack_id,
        "sentences": list(finding.sentences),
        **(_leak(finding.leak) if finding.leak is not None else {}),
    }


def _leak(leak: Leak) -> dict[str, Any]:
    return {
        "leak_kind": leak.kind,
        "unit": leak.unit,
        "bytes_per_unit": round(leak.rate),
        "blocks": leak.blocks,
        "bytes_at_end": leak.bytes_at_end,
        "units_with_survivors": leak.units_with_survivors,
        "units_judged": leak.units_judged,
        "windows_with_survivors": leak.windows_with_survivors,
        "windows_judged": leak.windows_judged,
        "oldest_age": leak.oldest_age,
        "forecast_seconds": leak.forecast,
        "live_bytes_over_run": list(leak.live),
        "path": [dataclasses.asdict(frame) for frame in leak.path],
        "path_share": round(leak.path_share, 4),
        "sites": [
            {
                "site": _site(site.site),
                "stack_id": site.stack_id,
                "bytes_per_unit": round(site.rate),
                "bytes": site.bytes,
                "blocks": site.blocks,
            }
            for site in leak.sites
        ],
    }


def _device(device: DeviceSummary) -> dict[str, Any]:
    return {
        "device": device.device,
        "allocations": device.allocations,
        "bytes_allocated": device.bytes_allocated,
        "peak": _holding(device.peak),
        "end": _holding(device.end),
        "growth": _growth(device.growth) if device.growth is not None else None,
        "growing": [
            {
                "site": _site(site.site),
                "stack_id": site.stack_id,
                "before_bytes": site.before,
                "after_bytes": site.after,
                "bytes_per_unit": round(site.rate),
            }
            for site in device.growing
        ],
        "leaks_judged": device.leaks.judged,
        "live_bytes_over_time": list(device.levels),
    }


def _holding(holding: Holding) -> dict[str, Any]:
    return {
        "bytes": holding.bytes,
        "blocks": holding.blocks,
        "event": holding.event,
        "seconds": holding.seconds,
        "step": holding.step,
        "sites": [
            {
                "site": _site(site.site),
                "bytes": site.bytes,
                "backward_bytes": site.backward_bytes,
                "blocks": site.blocks,
                "stack_id": site.stack_id,
            }
            for site in holding.sites
        ],
        "more_sites": holding.more_sites,
        "more_bytes": holding.more_bytes,
    }


def _growth(growth: StepGrowth) -> dict[str, Any]:
    return {
        "steps": growth.steps,
        "warmup": growth.warmup,
        "first_bytes": growth.first,
        "median_bytes": growth.median,
        "last_bytes": growth.last,
        "lowest_bytes": growth.lowest,
        "highest_bytes": growth.highest,
        "bytes_per_step": round(growth.slope),
        "seconds_per_step": growth.seconds_per_step,
        "samples": list(growth.samples),
    }


def _site(site: Site | None) -> dict[str, Any] | None:
    return dataclasses.asdict(site) if site is not None else None
