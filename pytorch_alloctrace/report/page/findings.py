"""What the page says: the findings with the sentences of the terminal, leaks with their survivors, refused requests,
and the table of sites."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ...analysis.free_memory.oom import find_ooms
from ...analysis.leaks.leak import Leak
from ...analysis.summary import Summary
from ...analysis.usage.lifetimes import site_lifetimes
from ...reading.recorded import RecordedTrace
from .. import units
from ..finding import LABELS, Finding
from ..leaks import explanation, leak_data
from ..oom import oom_data
from ..site_names import SiteNames
from ..tables import records, rows
from ..verdict import diagnosis
from .bounds import Bounds
from .names import PageStacks

_BARS = 120
"""Of the chart of survivors, at most."""
_LEAK_FIGURES = ("leak_kind", "unit", "bytes_per_unit", "blocks", "bytes_at_end", "forecast_seconds")
_OOM_FIGURES = (
    *("seq", "device", "step", "verdict", "requested", "segment_size", "largest_free", "device_free", "device_total"),
    *("reserved", "allocated", "free_here", "free_elsewhere", "outside", "outcome"),
)
_SITE_FIGURES = ("allocations", "bytes", "live_bytes", "live_blocks", "largest")
_STEP_FIGURES = ("allocations_per_step", "bytes_per_step", "retained_per_step")


def packed_findings(
    trace: RecordedTrace, summary: Summary, names: SiteNames, stacks: PageStacks
) -> list[dict[str, Any]]:
    """Every finding, the most pressing first."""
    return [_finding(trace, summary, finding, names, stacks) for finding in diagnosis(summary)]


def _finding(
    trace: RecordedTrace, summary: Summary, finding: Finding, names: SiteNames, stacks: PageStacks
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "kind": finding.kind,
        "label": LABELS[finding.kind],
        "title": finding.title,
        "sentences": list(finding.sentences),
        "device": finding.device,
        "bytes": finding.bytes,
        "confidence": finding.confidence,
        "site": stacks.site(finding.stack_id) if finding.site is not None and finding.site.filename else None,
        "source": names.source(finding.site) if finding.site is not None else None,
        "seq": _moment(trace, summary, finding),
    }
    if finding.leak is not None:
        made["leak"] = _leak(trace, finding.leak, names, stacks)
    return made


def _moment(trace: RecordedTrace, summary: Summary, finding: Finding) -> int | None:
    """The event after which the finding is best looked at."""
    for device in summary.devices:
        if device.device != finding.device:
            continue
        if finding.kind == "oom" and device.refused is not None:
            return device.refused.seq - 1
        for condition in device.conditions:
            if condition.kind == finding.kind:
                return trace.first_event_after(f"{max(condition.seconds, 0):.9f}s") - 1
    return finding.leak.judged_at if finding.leak is not None else None


def _leak(trace: RecordedTrace, leak: Leak, names: SiteNames, stacks: PageStacks) -> dict[str, Any]:
    data = leak_data(leak)
    return {
        **{name: data[name] for name in _LEAK_FIGURES},
        "explanation": explanation(leak),
        "live_over_run": data["live_bytes_over_run"],
        "path": [[names.site(frame), names.source(frame) or ""] for frame in leak.path],
        "sites": [
            [stacks.site(site.stack_id), round(site.rate), int(site.bytes), int(site.blocks)] for site in leak.sites
        ],
        "births": _births(trace, leak),
    }


def _births(trace: RecordedTrace, leak: Leak) -> dict[str, Any]:
    """The blocks of its lines that were live when it was judged, by birth: bytes in each of a number of bars."""
    live = trace.live(leak.judged_at, device=leak.device)
    lines = {(site.site.filename, site.site.line) for site in leak.sites}
    is_of_leak = [pair in lines for pair in zip(live["filename"].astype(str), live["line"], strict=True)]
    found = live[np.array(is_of_leak, dtype=bool) & live["birth_seq"].notna().to_numpy(bool)]
    steps = trace.steps()["step"].to_numpy(np.int64)
    by_step = leak.unit == "step" and len(steps) > 1 and bool((np.diff(steps) > 0).all())
    if by_step:
        births, first, last = found["step"].to_numpy(np.int64), int(steps[0]), int(steps[-1]) + 1
    else:
        births = found["birth_ns"].to_numpy(np.int64) - trace.begin_ns
        first, last = 0, max(trace.end_ns - trace.begin_ns, 1)
    bars = min(_BARS, last - first + 1)
    width = -(-(last - first + 1) // bars)
    sums = np.zeros(-(-(last - first + 1) // width), dtype=np.int64)
    inside = (births >= first) & (births <= last)
    np.add.at(sums, (births[inside] - first) // width, found["nbytes"].to_numpy(np.int64)[inside])
    return {"unit": "step" if by_step else "ns", "first": first, "width": width, "bytes": sums.tolist()}


def packed_refusals(
    trace: RecordedTrace, names: SiteNames, stacks: PageStacks, bounds: Bounds
) -> tuple[list[dict[str, Any]], int]:
    """The last refused requests, and how many there were before them."""
    found = find_ooms(trace, last=bounds.refusals)
    made = []
    for one in found:
        data = oom_data(one, names, 8)
        made.append(
            {
                **{name: data[name] for name in _OOM_FIGURES},
                "title": f"{one.device} refused {units.size(one.requested)}: {one.verdict}",
                "time": one.request.time_ns - trace.begin_ns,
                "site": stacks.site(one.request.stack_id),
                "source": names.source(one.site),
                "sentences": data["sentences"],
                "top": [[stacks.site(site.stack_id), site.bytes, site.blocks] for site in one.top_sites[:8]],
            }
        )
    return made, max(len(trace.refused_requests) - len(found), 0)


def packed_sites(trace: RecordedTrace, device: str, stacks: PageStacks, bounds: Bounds) -> dict[str, Any]:
    """What each line allocated on a device, the most bytes first."""
    table = site_lifetimes(trace, device=device)
    table = table[(table["bytes"] > 0) | (table["live_bytes"] > 0)]
    shown = table.head(bounds.sites)
    figures = [*_SITE_FIGURES, *_STEP_FIGURES]
    values = records(shown[figures]) if len(shown) else []
    return {
        "columns": figures,
        "rows": [
            [stacks.site(int(row["stack_id"])), *(_number(value[name]) for name in figures)]
            for row, value in zip(rows(shown), values, strict=True)
        ],
        "left_out": len(table) - len(shown),
    }


def _number(value: Any) -> float | None:
    if value is None or pd.isna(value):
        return None
    return int(value) if float(value).is_integer() else round(float(value), 3)
