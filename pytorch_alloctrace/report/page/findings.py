"""What the page says: the findings with the sentences of the terminal, leaks with a chart of the births of their
survivors, failed allocations, and the table of sites.
"""

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
from ...analysis.usage.lifetimes import whole_lifetimes
from ...reading.recorded import RecordedTrace
from ...reading.sites import SiteNumbers
from .. import units
from ..finding import LABELS, Finding
from ..leaks import explanation, leak_data
from ..oom import oom_data
from ..site_names import SiteNames
from ..tables import records, rows
from ..verdict import diagnosis
from .moments import Bounds
from .names import PageStacks

_BARS = 120
"""Of a chart, at most."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Live:
    """The blocks of a device that were allocated in the recording and live after an event."""

    born_at: Numbers
    """The event."""
    born_ns: Numbers
    bytes: Numbers
    rows: dict[int, Numbers]
    """Which of them each line, by number, has made."""


class Births:
    """Asks the replay once for what many findings share."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._numbers = SiteNumbers(trace.stacks)
        self._known: dict[tuple[str, int], _Live] = {}
        self._steps = trace.steps()["step"]

    def of(self, leak: Leak) -> dict[str, Any]:
        """The blocks of its lines that were live when it was judged, by birth: bytes in each of a number of bars."""
        live = self._live(leak.device, leak.judged_at)
        sites = np.unique(self._numbers.of([one.stack_id for one in leak.sites]))
        rows = np.concatenate([live.rows.get(site, np.zeros(0, np.int64)) for site in sites.tolist()])
        by_step = leak.unit == "step" and len(self._steps) > 1 and bool((np.diff(self._steps) > 0).all())
        if by_step:
            births = np.asarray(self._trace.positions.step_of(live.born_at[rows])).astype(np.int64)
            first, last = int(self._steps[0]), int(self._steps[-1]) + 1
        else:
            births = live.born_ns[rows] - self._trace.begin_ns
            first, last = 0, max(self._trace.end_ns - self._trace.begin_ns, 1)
        bars = min(_BARS, last - first + 1)
        width = -(-(last - first + 1) // bars)
        sums = np.zeros(-(-(last - first + 1) // width), dtype=np.int64)
        inside = (births >= first) & (births <= last)
        np.add.at(sums, (births[inside] - first) // width, live.bytes[rows][inside])
        return {"unit": "step" if by_step else "ns", "first": first, "width": width, "bytes": sums.tolist()}

    def _live(self, device: str, judged_at: int) -> _Live:
        found = self._known.get((device, judged_at))
        if found is None:
            blocks = self._trace.replay.live(judged_at + 1, device)
            blocks = blocks.take(~blocks["older"])
            found = self._known[device, judged_at] = _Live(
                blocks["alloc_seq"],
                blocks["alloc_ns"],
                blocks["requested_bytes"],
                rows_of(self._numbers.of(blocks["stack_id"])),
            )
        return found


_LEAK_FIGURES = ("leak_kind", "unit", "bytes_per_unit", "blocks", "allocated_bytes_at_end", "forecast_seconds")
_OOM_FIGURES = (
    *("seq", "device", "step", "verdict", "outcome", "requested_bytes", "segment_bytes", "largest_free_bytes"),
    *("device_free_bytes", "device_bytes", "reserved_bytes", "allocated_bytes", "free_here_bytes"),
    *("free_elsewhere_bytes", "outside_bytes"),
)
_SITE_FIGURES = {
    "allocations": "allocations",
    "total_bytes": "bytes",
    "live_bytes": "live_bytes",
    "live_blocks": "live_blocks",
    "largest_bytes": "largest",
    "allocations_per_step": "allocations_per_step",
    "bytes_per_step": "bytes_per_step",
    "retained_bytes_per_step": "retained_per_step",
}
"""Columns of `lifetimes`, and what the page calls them."""


def packed_findings(
    trace: RecordedTrace, summary: Summary, names: SiteNames, stacks: PageStacks
) -> list[dict[str, Any]]:
    """Every finding, the most pressing first."""
    births = Births(trace)
    return [_finding(trace, summary, finding, names, stacks, births) for finding in diagnosis(summary, names)]


def _finding(
    trace: RecordedTrace, summary: Summary, finding: Finding, names: SiteNames, stacks: PageStacks, births: Births
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
        made["leak"] = _leak(finding.leak, names, stacks) | {"births": births.of(finding.leak)}
    return made


def _moment(trace: RecordedTrace, summary: Summary, finding: Finding) -> int | None:
    """The event after which the finding is best looked at."""
    for device in summary.devices:
        if device.device != finding.device:
            continue
        if finding.kind == "oom" and device.refused is not None:
            return device.refused.seq - 1
        for inefficiency in device.inefficiencies:
            if inefficiency.kind == finding.kind:
                return trace.first_event_after_time(trace.begin_ns + round(inefficiency.seconds * 1e9)) - 1
    return finding.leak.judged_at if finding.leak is not None else None


def _leak(leak: Leak, names: SiteNames, stacks: PageStacks) -> dict[str, Any]:
    data = leak_data(leak)
    return {
        **{name: data[name] for name in _LEAK_FIGURES},
        "explanation": explanation(leak),
        "live_over_run": data["allocated_bytes_over_run"],
        "path": [[names.site(frame), names.source(frame) or ""] for frame in leak.path],
        "sites": [
            [stacks.site(site.stack_id), round(site.bytes_per_unit), int(site.allocated_bytes), int(site.blocks)]
            for site in leak.sites
        ],
    }


def packed_refusals(
    trace: RecordedTrace, names: SiteNames, stacks: PageStacks, bounds: Bounds
) -> tuple[list[dict[str, Any]], int]:
    """The last failed allocations, and how many there were before them."""
    found, advisor = find_ooms(trace, last=bounds.refusals), Advisor(trace)
    made = []
    for one in found:
        data = oom_data(one, names, advisor, 8)
        made.append(
            {
                **{name: data[name] for name in _OOM_FIGURES},
                "title": f"{one.device} refused {units.size(one.requested_bytes)}: {one.verdict}",
                "time": one.request.time_ns - trace.begin_ns,
                "site": stacks.site(one.request.stack_id),
                "source": names.source(one.site),
                "sentences": data["sentences"],
                "top": [[stacks.site(site.stack_id), site.bytes, site.blocks] for site in one.top_sites[:8]],
            }
        )
    return made, max(trace.kind_counts.get("oom", 0) - len(found), 0)


def packed_sites(trace: RecordedTrace, device: str, stacks: PageStacks, bounds: Bounds) -> dict[str, Any]:
    """What each line allocated on a device, the most bytes first."""
    table = whole_lifetimes(trace, device=device, slow_calls=False).table(trace.stacks, "line")
    table = table[(table["total_bytes"] > 0) | (table["live_bytes"] > 0)]
    shown = table.head(bounds.sites)
    figures = [*_SITE_FIGURES]
    values = records(shown[figures]) if len(shown) else []
    return {
        "columns": [*_SITE_FIGURES.values()],
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
