"""Findings, leaks, failed allocations and the site table of the page, with the sentences of the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...analysis.advice import Advisor
from ...analysis.free_memory.oom import find_ooms
from ...analysis.leaks.leak import Leak
from ...analysis.leaks.lifetimes import rows_of
from ...analysis.summary import Summary
from ...analysis.usage.lifetimes import lifetimes_of_run
from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from ..finding import LABELS, Finding
from ..leaks import leak_data
from ..oom import oom_data
from ..site_names import SiteNames
from ..tables import records, rows
from ..verdict import diagnosis
from .names import PageStacks
from .snapshots import Bounds

_MAX_CHART_BARS = 120

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _LiveBlocks:
    """Blocks of a device that were allocated in the recording and are live after an event."""

    alloc_seq: Numbers
    alloc_ns: Numbers
    bytes: Numbers
    rows_by_site: dict[int, Numbers]


class AllocationCharts:
    """Charts of the allocation times of leaked blocks. Live blocks are read once per device and event."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._numbers = SiteNumbers(trace.stacks.line_numbers)
        self._live_blocks: dict[tuple[str, int], _LiveBlocks] = {}
        self._steps = trace.steps()["step"]

    def chart(self, leak: Leak) -> dict[str, Any]:
        """Return a histogram of the leak's bytes live at `judged_at`, by step or time of allocation."""
        live = self._read_live_blocks(leak.device, leak.judged_at)
        sites = np.unique(self._numbers.of([site.stack_id for site in leak.sites]))
        rows = np.concatenate([live.rows_by_site.get(site, np.zeros(0, np.int64)) for site in sites.tolist()])
        by_step = leak.unit == "step" and len(self._steps) > 1 and bool((np.diff(self._steps) > 0).all())
        if by_step:
            allocated_at = np.asarray(self._trace.positions.step_of(live.alloc_seq[rows])).astype(np.int64)
            first, last = int(self._steps[0]), int(self._steps[-1]) + 1
        else:
            allocated_at = live.alloc_ns[rows] - self._trace.begin_ns
            first, last = 0, max(self._trace.end_ns - self._trace.begin_ns, 1)
        bar_count = min(_MAX_CHART_BARS, last - first + 1)
        bar_width = -(-(last - first + 1) // bar_count)
        bar_bytes = np.zeros(-(-(last - first + 1) // bar_width), dtype=np.int64)
        in_range = (allocated_at >= first) & (allocated_at <= last)
        np.add.at(bar_bytes, (allocated_at[in_range] - first) // bar_width, live.bytes[rows][in_range])
        return {"unit": "step" if by_step else "ns", "first": first, "width": bar_width, "bytes": bar_bytes.tolist()}

    def _read_live_blocks(self, device: str, judged_at: int) -> _LiveBlocks:
        live = self._live_blocks.get((device, judged_at))
        if live is None:
            blocks = self._trace.replay.live(judged_at + 1, device)
            blocks = blocks.take(~blocks["older"])
            live = self._live_blocks[device, judged_at] = _LiveBlocks(
                blocks["alloc_seq"],
                blocks["alloc_ns"],
                blocks["requested_bytes"],
                rows_of(self._numbers.of(blocks["stack_id"])),
            )
        return live


_LEAK_FIELDS = ("leak_kind", "unit", "bytes_per_unit", "blocks", "allocated_bytes_at_end", "forecast_seconds")
_OOM_FIELDS = (
    *("seq", "device", "step", "verdict", "outcome", "requested_bytes", "segment_bytes", "largest_free_bytes"),
    *("device_free_bytes", "device_bytes", "reserved_bytes", "allocated_bytes", "free_here_bytes"),
    *("free_elsewhere_bytes", "outside_bytes"),
)
_SITE_COLUMNS = {
    "allocations": "allocations",
    "total_bytes": "bytes",
    "live_bytes": "live_bytes",
    "live_blocks": "live_blocks",
    "largest_bytes": "largest",
    "allocations_per_step": "allocations_per_step",
    "bytes_per_step": "bytes_per_step",
    "retained_bytes_per_step": "retained_per_step",
}
"""Columns of `lifetimes`, with their names in the page's JSON."""


def pack_findings(trace: RecordedTrace, summary: Summary, names: SiteNames, stacks: PageStacks) -> list[dict[str, Any]]:
    """Return every finding, the most urgent first."""
    charts = AllocationCharts(trace)
    return [_pack_finding(trace, summary, finding, names, stacks, charts) for finding in diagnosis(summary, names)]


def _pack_finding(
    trace: RecordedTrace,
    summary: Summary,
    finding: Finding,
    names: SiteNames,
    stacks: PageStacks,
    charts: AllocationCharts,
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "kind": finding.kind,
        "label": LABELS[finding.kind],
        "title": finding.title,
        "sentences": list(finding.sentences),
        "device": finding.device,
        "bytes": finding.bytes,
        "confidence": finding.confidence,
        "site": stacks.site(finding.stack_id) if finding.site is not None and finding.site.filename else None,
        "source": names.source(finding.site) if finding.site is not None else None,
        "seq": _choose_snapshot(trace, summary, finding),
    }
    if finding.leak is not None:
        data["leak"] = _pack_leak(finding.leak, names, stacks) | {"births": charts.chart(finding.leak)}
    return data


def _choose_snapshot(trace: RecordedTrace, summary: Summary, finding: Finding) -> int | None:
    """Return the event whose state shows the finding best, or None."""
    for device in summary.devices:
        if device.device != finding.device:
            continue
        if finding.kind == "oom" and device.failure is not None:
            return device.failure.seq - 1
        for inefficiency in device.inefficiencies:
            if inefficiency.kind == finding.kind:
                return trace.first_event_after_time(trace.begin_ns + round(inefficiency.seconds * 1e9)) - 1
    return finding.leak.judged_at if finding.leak is not None else None


def _pack_leak(leak: Leak, names: SiteNames, stacks: PageStacks) -> dict[str, Any]:
    data = leak_data(leak)
    return {
        **{name: data[name] for name in _LEAK_FIELDS},
        "live_over_run": data["allocated_bytes_over_run"],
        "path": [[names.site(frame), names.source(frame) or ""] for frame in leak.path],
        "sites": [
            [stacks.site(site.stack_id), round(site.bytes_per_unit), int(site.allocated_bytes), int(site.blocks)]
            for site in leak.sites
        ],
    }


def pack_failed_allocations(
    trace: RecordedTrace, names: SiteNames, stacks: PageStacks, bounds: Bounds
) -> tuple[list[dict[str, Any]], int]:
    """Return the last failed allocations, and the number of earlier failed allocations."""
    ooms, advisor = find_ooms(trace, last=bounds.failed_allocations), Advisor(trace)
    packed = []
    for oom in ooms:
        data = oom_data(oom, names, advisor, 8)
        packed.append(
            {
                **{name: data[name] for name in _OOM_FIELDS},
                "title": data["title"],
                "time": oom.request.time_ns - trace.begin_ns,
                "site": stacks.site(oom.request.stack_id),
                "source": names.source(oom.site),
                "sentences": data["sentences"],
                "top": [[stacks.site(site.stack_id), site.bytes, site.blocks] for site in oom.top_sites[:8]],
            }
        )
    return packed, max(trace.kind_counts.get("oom", 0) - len(ooms), 0)


def pack_sites(trace: RecordedTrace, device: str, stacks: PageStacks, bounds: Bounds) -> dict[str, Any]:
    """Return the allocations of each line on a device, the most bytes first."""
    table = lifetimes_of_run(trace, device=device, slow_calls=False).table(trace.stacks, "line")
    table = table[(table["total_bytes"] > 0) | (table["live_bytes"] > 0)]
    top_rows = table.head(bounds.sites)
    measures = [*_SITE_COLUMNS]
    values = records(top_rows[measures]) if len(top_rows) else []
    return {
        "columns": [*_SITE_COLUMNS.values()],
        "rows": [
            [stacks.site(int(row["stack_id"])), *(_json_number(value[name]) for name in measures)]
            for row, value in zip(rows(top_rows), values, strict=True)
        ],
        "left_out": len(table) - len(top_rows),
    }


def _json_number(value: Any) -> float | None:
    if value is None or pd.isna(value):
        return None
    return int(value) if float(value).is_integer() else round(float(value), 3)
