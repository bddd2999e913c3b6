"""The view of a recording that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ..reading.following import FollowedMemory, FollowedSite, View
from . import units
from .screen import Screen
from .site_names import printable

GROWING, LARGEST = 8, 5
"""Most lines that are named."""
_CHART = 60
_WORTH_A_CHART = 100
"""A device whose peak is less than this part of the highest has no chart."""


@dataclass(frozen=True)
class Rates:
    """How fast it goes, since another look, or since the beginning."""

    events: float
    steps: float

    @classmethod
    def between(cls, before: View | None, now: View) -> Rates:
        seen, old = now.seen, before.seen if before is not None else None
        begin = old.end_ns if old is not None else seen.begin_ns
        seconds = (seen.end_ns - begin) / 1e9
        if seconds <= 0:
            return cls(0.0, 0.0)
        events, steps = (old.events, old.steps) if old is not None else (0, 0)
        return cls((seen.events - events) / seconds, max(seen.steps - steps, 0) / seconds)


def write_view(view: View, rates: Rates, path: str, header: dict[str, Any], screen: Screen, top: int = GROWING) -> None:
    """What a look shows: where it stands, the memory of each device over time, what grows and what is large."""
    seen = view.seen
    lasted = units.duration(max(seen.end_ns - seen.begin_ns, 0) / 1e9)
    pid = header.get("process")
    of = f", process {pid}" if isinstance(pid, int) else ""
    screen.text(Text.assemble(("LIVE", "bold green"), f"  {printable(path)}{of}, recorded for {lasted}"), hanging=6)
    steps = f", {units.counted(seen.steps, 'step')} ({_per_second(rates.steps)})" if seen.steps else ", no steps yet"
    losses = seen.lost + seen.missing_events
    lost = f", {units.counted(losses, 'event')} lost" if losses else ", none lost"
    behind = "" if seen.caught_up else " (still catching up)"
    screen.text(
        f"{units.counted(seen.events, 'event')} ({_per_second(rates.events)}){lost}{steps}, "
        f"{units.size(seen.file_bytes)} of trace{behind}",
        6,
    )
    devices = sorted(view.devices, key=lambda one: -one.counts.peak_allocated)
    for memory in devices:
        _write_device(memory, view, screen, devices[0].counts.peak_allocated)
    # Where it is not said otherwise, a line is of the first.
    first = devices[0].device if devices else ""
    growing = view.growing
    screen.blank()
    if growing:
        screen.text(Text("GROWS", "bold yellow"))
        for site in growing[:top]:
            _write_site(site, units.rate(site.rate, view.unit), screen, first, held=True)
        if len(growing) > top:
            screen.text(f"and {units.counted(len(growing) - top, 'more line')}", 2)
        screen.text("Not judged: what fills up once grows, too. `alloctrace leaks` judges.", 2, style="dim")
    elif len(seen.points) < 5:
        screen.text(Text("Too early to say what grows.", "dim"))
    else:
        screen.text(Text.assemble(("OK", "bold green"), "  No line holds ever more."))
    largest = sorted((site for site in view.sites if site.bytes), key=lambda site: -site.bytes)[: min(LARGEST, top)]
    if largest:
        screen.blank()
        screen.text(Text("HOLDS MOST", "bold"))
        for site in largest:
            _write_site(site, units.size(site.bytes), screen, first, held=False)


def _write_device(memory: FollowedMemory, view: View, screen: Screen, most: int) -> None:
    counts = memory.counts
    screen.blank()
    parts = [f"{units.size(counts.allocated)} allocated"]
    if counts.reports_segments:
        parts.append(f"{units.size(counts.reserved)} reserved ({units.size(memory.cached)} cached)")
    parts.append(f"peak {units.size(counts.peak_allocated)}")
    if counts.driver_total and memory.device.startswith("cuda"):
        parts.append(f"{units.size(counts.driver_total)} in all")
    if counts.refused:
        parts.append(units.counted(counts.refused, "failed allocation"))
    screen.text(Text.assemble((memory.device, "bold"), "  ", ", ".join(parts)), hanging=len(memory.device) + 2)
    curve = counts.curve_allocated
    if len(curve) > 1 and counts.peak_allocated * _WORTH_A_CHART >= most:
        chart = units.sparkline(curve, max(min(screen.width - 32, _CHART), 10), plain=screen.plain, least=0)
        grew = f"  {units.rate(memory.rate, view.unit)}" if memory.rate else ""
        screen.text(Text.assemble((chart, "cyan"), f"  allocated{grew}"), 2)


def _write_site(site: FollowedSite, amount: str, screen: Screen, first: str, *, held: bool) -> None:
    on = f" on {site.device}" if site.device != first else ""
    held_now = f", {units.size(site.bytes)} in {units.counted(site.blocks, 'block')}" if held else ""
    name = f"{printable(site.name)}{f' in {printable(site.function)}' if site.function else ''}{held_now}{on}"
    screen.entry(amount, name, printable(site.source) or None, 2, 20 if held else 10)
    if site.holder:
        screen.text(f"held by {printable(site.holder)}", 24 if held else 14, style="dim")


def _per_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.2g}/s"


def view_json(
    view: View, rates: Rates, path: str, header: dict[str, Any], *, running: bool = True, top: int | None = None
) -> dict[str, Any]:
    """The same as plain values. Bytes; rates are of `unit`, or of a second where they say so. top: how many sites, in
    the order of `View.sites`."""
    seen = view.seen
    process = header.get("process")
    return {
        "trace": path,
        "process": process if isinstance(process, int) else None,
        "running": running,
        "begin_ns": seen.begin_ns,
        "end_ns": seen.end_ns,
        "events": seen.events,
        "events_per_second": rates.events,
        "events_lost": seen.lost + seen.missing_events,
        "file_bytes": seen.file_bytes,
        "steps": seen.steps,
        "step": seen.last_step if seen.steps else None,
        "steps_per_second": rates.steps,
        "unit": view.unit,
        "devices": [
            {
                "device": memory.device,
                "requested_bytes": memory.counts.requested,
                "allocated_bytes": memory.counts.allocated,
                "active_bytes": memory.counts.active,
                "reserved_bytes": memory.counts.reserved if memory.counts.reports_segments else None,
                "cached_bytes": memory.cached if memory.counts.reports_segments else None,
                "peak_allocated_bytes": memory.counts.peak_allocated,
                "peak_reserved_bytes": memory.counts.peak_reserved if memory.counts.reports_segments else None,
                "failed_allocations": memory.counts.refused,
                "bytes_per_unit": memory.rate,
            }
            for memory in view.devices
        ],
        "sites": [
            {
                "site": site.name,
                "function": site.function,
                "device": site.device,
                "requested_bytes": site.bytes,
                "blocks": site.blocks,
                "bytes_per_unit": site.rate,
                "grows": site.grows,
                "holder": site.holder or None,
            }
            for site in view.sites[:top]
        ],
    }
