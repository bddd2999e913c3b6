"""View of a running recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from ..reading.following import FollowedMemory, FollowedSite, View
from . import units
from .screen import Screen
from .site_names import printable

GROWING, LARGEST = 8, 5  # maximum number of lines
_MAX_CHART_WIDTH = 60
_MAX_PEAK_RATIO = 100  # a device gets no chart if the highest peak is more than 100 times its peak


@dataclass(frozen=True)
class Rates:
    """Events and steps per second since the previous view, or since the beginning."""

    events: float
    steps: float

    @classmethod
    def between(cls, before: View | None, now: View) -> Rates:
        progress, previous = now.seen, before.seen if before is not None else None
        begin = previous.end_ns if previous is not None else progress.begin_ns
        seconds = (progress.end_ns - begin) / 1e9
        if seconds <= 0:
            return cls(0.0, 0.0)
        events, steps = (previous.events, previous.steps) if previous is not None else (0, 0)
        return cls((progress.events - events) / seconds, max(progress.steps - steps, 0) / seconds)


def write_view(view: View, rates: Rates, path: str, header: dict[str, Any], screen: Screen, top: int = GROWING) -> None:
    progress = view.seen
    duration = units.duration(max(progress.end_ns - progress.begin_ns, 0) / 1e9)
    pid = header.get("process")
    process = f", process {pid}" if isinstance(pid, int) else ""
    screen.text(
        Text.assemble(("LIVE", "bold green"), f"  {printable(path)}{process}, recorded for {duration}"), hanging=6
    )
    steps = (
        f", {units.counted(progress.steps, 'step')} ({_format_rate(rates.steps)})"
        if progress.steps
        else ", no steps yet"
    )
    losses = progress.lost + progress.missing_events
    loss_text = f", {units.counted(losses, 'event')} lost" if losses else ", none lost"
    catching_up = "" if progress.is_caught_up else " (still catching up)"
    screen.text(
        f"{units.counted(progress.events, 'event')} ({_format_rate(rates.events)}){loss_text}{steps}, "
        f"{units.size(progress.file_bytes)} of trace{catching_up}",
        6,
    )
    devices = sorted(view.devices, key=lambda device: -device.counts.peak_allocated)
    for memory in devices:
        _write_device(memory, view, screen, devices[0].counts.peak_allocated)
    # Only lines of other devices name their device.
    default_device = devices[0].device if devices else ""
    growing = view.growing
    screen.blank()
    if growing:
        screen.text(Text("GROWS", "bold yellow"))
        for site in growing[:top]:
            _write_site(site, units.rate(site.rate, view.unit), screen, default_device, shows_bytes=True)
        if len(growing) > top:
            screen.text(f"and {units.counted(len(growing) - top, 'more line')}", 2)
        screen.text("A cache that fills once grows, too. Run `alloctrace leaks` to judge.", 2, style="dim")
    elif len(progress.points) < 5:
        screen.text(Text("Too early to say what grows.", "dim"))
    else:
        screen.text(Text.assemble(("OK", "bold green"), "  No line keeps growing."))
    largest = sorted((site for site in view.sites if site.bytes), key=lambda site: -site.bytes)[: min(LARGEST, top)]
    if largest:
        screen.blank()
        screen.text(Text("HOLDS MOST", "bold"))
        for site in largest:
            _write_site(site, units.size(site.bytes), screen, default_device, shows_bytes=False)


def _write_device(memory: FollowedMemory, view: View, screen: Screen, highest_peak: int) -> None:
    counts = memory.counts
    screen.blank()
    amounts = [f"{units.size(counts.allocated)} allocated"]
    if counts.reports_segments:
        amounts.append(f"{units.size(counts.reserved)} reserved ({units.size(memory.cached)} cached)")
    amounts.append(f"peak {units.size(counts.peak_allocated)} allocated")
    if counts.driver_total and memory.device.startswith("cuda"):
        amounts.append(f"{units.size(counts.driver_total)} in all")
    if counts.failed_allocations:
        amounts.append(units.counted(counts.failed_allocations, "failed allocation"))
    screen.text(Text.assemble((memory.device, "bold"), "  ", ", ".join(amounts)), hanging=len(memory.device) + 2)
    curve = counts.curve_allocated
    if len(curve) > 1 and counts.peak_allocated * _MAX_PEAK_RATIO >= highest_peak:
        chart = units.sparkline(curve, max(min(screen.width - 32, _MAX_CHART_WIDTH), 10), plain=screen.plain, minimum=0)
        growth = f"  {units.rate(memory.rate, view.unit)}" if memory.rate else ""
        screen.text(Text.assemble((chart, "cyan"), f"  allocated{growth}"), 2)


def _write_site(site: FollowedSite, amount: str, screen: Screen, default_device: str, *, shows_bytes: bool) -> None:
    device = f" on {site.device}" if site.device != default_device else ""
    amount_held = f", {units.size(site.bytes)} in {units.counted(site.blocks, 'block')}" if shows_bytes else ""
    title = f"{printable(site.name)}{f' in {printable(site.function)}' if site.function else ''}{amount_held}{device}"
    screen.entry(amount, title, printable(site.source) or None, 2, 20 if shows_bytes else 10)
    if site.holder:
        screen.text(f"held by {printable(site.holder)}", 24 if shows_bytes else 14, style="dim")


def _format_rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.2g}/s"


def view_json(
    view: View, rates: Rates, path: str, header: dict[str, Any], *, running: bool = True, top: int | None = None
) -> dict[str, Any]:
    """Return the view and its first `top` sites: sizes in bytes, rates per `unit` (keys in _per_second: per second)."""
    progress = view.seen
    process = header.get("process")
    return {
        "trace": path,
        "process": process if isinstance(process, int) else None,
        "running": running,
        "begin_ns": progress.begin_ns,
        "end_ns": progress.end_ns,
        "events": progress.events,
        "events_per_second": rates.events,
        "events_lost": progress.lost + progress.missing_events,
        "file_bytes": progress.file_bytes,
        "steps": progress.steps,
        "step": progress.last_step if progress.steps else None,
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
                "failed_allocations": memory.counts.failed_allocations,
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
