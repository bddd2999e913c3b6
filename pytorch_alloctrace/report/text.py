"""The verdict as text: what was found first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..analysis.leaks.leak import GROWING, Leak
from ..analysis.summary import DeviceSummary, Holding, Summary
from . import units
from .findings import Finding, diagnosis, findings
from .places import PlaceNames
from .screen import Screen
from .stacks import Frames

_LABEL_STYLES = {
    "oom": ("OUT OF MEMORY", "bold red"),
    "leak": ("LEAK", "bold red"),
    "no_leak": ("OK", "bold green"),
    "not_judged": ("NOTE", "bold yellow"),
    "fragmentation": ("FRAGMENTED", "bold yellow"),
    "cache": ("UNUSED CACHE", "bold yellow"),
    "rounding": ("ROUNDING", "bold yellow"),
    "pending": ("PENDING FREES", "bold yellow"),
    "churn": ("CHURN", "bold yellow"),
    "outside": ("OUTSIDE", "bold yellow"),
}
_LEAKING_SITES = 5
"""Lines of one leak that are shown."""
_GROWING_SITES = 5
_PATH_FRAMES = 3
"""Callers that are shown."""
_SIZE_COLUMN = 11


def write_verdict(summary: Summary, screen: Screen, frames: Frames | None = None) -> None:
    """Writes a summary to the screen. frames: where whole stacks are to be shown."""
    names = PlaceNames(summary.program.working_directory, frames)
    _header(summary, screen, names)
    _damage(summary, screen)
    if not summary.devices:
        _nothing(summary, screen)
        return
    explained = False
    for finding in diagnosis(summary):
        screen.blank()
        _finding(finding, screen, names, explain=not explained)
        explained = explained or finding.leak is not None
    small = [device for device in summary.devices if _is_small(device, summary)]
    for device in summary.devices:
        if device not in small:
            _device(device, summary, screen, names)
    _small_devices(small, screen)
    _notes(summary, screen)


def write_findings(summary: Summary, screen: Screen, top: int, frames: Frames | None = None) -> int:
    """Writes the first findings of a summary alone, and what they rest on; returns how many leaks there are. frames: as
    of write_verdict."""
    names = PlaceNames(summary.program.working_directory, frames)
    _header(summary, screen, names)
    _damage(summary, screen)
    if not summary.devices:
        _nothing(summary, screen)
        return 0
    found = findings(summary)
    for number, finding in enumerate(found[:top]):
        screen.blank()
        _finding(finding, screen, names, explain=number == 0)
    if found[top:]:
        screen.blank()
        screen.text(f"and {units.counted(len(found) - top, 'more leak')}", style="dim")
    return sum(finding.leak is not None for finding in found)


def _header(summary: Summary, screen: Screen, names: PlaceNames) -> None:
    program, devices = summary.program, [device.device for device in summary.devices]
    versions = [f"torch {program.torch}" if program.torch else "", f"Python {program.python}" if program.python else ""]
    rank = f"rank {program.rank}" if program.rank not in ("", "0") else ""
    first = Text(names.command(program), style="bold")
    first.append("".join(f", {part}" for part in [*versions, rank, *devices] if part), style="not bold")
    screen.text(first, hanging=2)
    facts = [
        units.duration(summary.seconds),
        units.counted(summary.steps, "step") if summary.steps else "no steps",
        f"{units.counted(summary.integrity.events, 'event')} in {units.size(summary.file_bytes)}",
    ]
    whole = summary.integrity.state == "complete"
    screen.text(", ".join(facts) + (f": trace {summary.integrity}" if whole else ""), hanging=2)


def _damage(summary: Summary, screen: Screen) -> None:
    if summary.integrity.state == "complete":
        return
    screen.blank()
    label = "DAMAGED" if summary.integrity.state == "corrupt" else "INCOMPLETE"
    line = Text.assemble((label, "bold yellow"), f"  {summary.integrity}.")
    screen.text(line, hanging=len(label) + 2)
    events = units.counted(summary.integrity.events, "event")
    screen.text(f"What follows rests on the {events} that could be read.", len(label) + 2)


def _nothing(summary: Summary, screen: Screen) -> None:
    screen.blank()
    if summary.integrity.state == "complete":
        recorded = ", ".join(summary.program.recorded_devices) or "no device"
        screen.text(f"Nothing was allocated through torch while this was recorded ({recorded}).")
    else:
        screen.text("No allocation can be read from this trace.")


def _finding(finding: Finding, screen: Screen, names: PlaceNames, *, explain: bool) -> None:
    label, style = _LABEL_STYLES[finding.kind]
    indent = len(label) + 2
    screen.text(Text.assemble((label, style), "  ", (finding.title, "bold")), hanging=indent)
    source = names.source(finding.site) if finding.site is not None else None
    if source:
        screen.source(source, indent)
    for sentence in finding.sentences:
        screen.text(sentence, indent)
    if finding.leak is not None:
        _live(finding.leak, indent, screen)
    # A leak of several lines has the stack of each with the line.
    frames = [] if finding.leak is not None and len(finding.leak.sites) > 1 else names.stack(finding.stack_id)
    if frames:
        screen.text("Stack, innermost frame first:", indent)
        screen.frames(frames, indent + 2)
    elif finding.path:
        _path(finding, indent, screen, names)
    if finding.leak is not None:
        _leaking_sites(finding.leak, indent, screen, names)
        if explain and finding.site is not None and finding.site.filename:
            screen.text(_explanation(finding.leak), indent, style="dim")


def _live(leak: Leak, indent: int, screen: Screen) -> None:
    """A chart of what the lines of a leak held over the run."""
    if len(leak.live) < 2:
        return
    chart = units.sparkline(leak.live, max(min(screen.width - indent - 30, 60), 10), plain=screen.plain)
    arrow = "to" if screen.plain else "→"
    first, last = units.size(leak.live[0]), units.size(leak.live[-1])
    screen.text(Text.assemble("live: ", (chart, "green"), f"  {first} {arrow} {last}"), indent)


def _path(finding: Finding, indent: int, screen: Screen, names: PlaceNames) -> None:
    screen.text(f"{finding.path_title}:", indent)
    for frame in finding.path[:_PATH_FRAMES]:
        screen.text(names.place(frame), indent + 2)
        quoted = names.source(frame)
        if quoted:
            screen.source(quoted, indent + 4)


def _explanation(leak: Leak) -> str:
    if leak.kind == GROWING:
        return "This line makes the larger one of the last and something new: empty it at times, or give it a bound."
    keepers = "a list, an attribute, a closure, an autograd graph"
    made = "makes the blocks" if leak.line == leak.sites[0].site else "calls what makes the blocks"
    return f"This line {made}; what keeps them is a reference: {keepers}."


def _leaking_sites(leak: Leak, indent: int, screen: Screen, names: PlaceNames) -> None:
    """Where the blocks of a leak of several lines are made, by bytes."""
    if len(leak.sites) == 1:
        return
    screen.text("Made at these lines, in the same steps, and probably kept by one reference:", indent)
    for site in leak.sites[:_LEAKING_SITES]:
        rate, frames = units.rate(site.rate, leak.unit), names.stack(site.stack_id)
        screen.entry(rate, names.place(site.site), names.source(site.site), indent, 20, frames=frames)
    more = leak.sites[_LEAKING_SITES:]
    if more:
        rate = units.rate(sum(site.rate for site in more), leak.unit)
        screen.text(f"and {units.counted(len(more), 'more line')}, {rate}", indent + 2, style="dim")


def _device(device: DeviceSummary, summary: Summary, screen: Screen, names: PlaceNames) -> None:
    when = f"at {units.duration(device.peak.seconds)}"
    if device.peak.step is not None:
        when += f" in step {device.peak.step}"
    _holding("PEAK", device.peak, when, device, summary, screen, names)
    _holding("AT THE END", device.end, "when the trace ends", device, summary, screen, names)
    _growth(device, screen, names)


def _is_small(device: DeviceSummary, summary: Summary) -> bool:
    """Whether next to the largest device nobody asks for this one's lines: a twentieth of it, and no leak."""
    return device.peak.bytes * 20 < summary.devices[0].peak.bytes and not device.leaks.leaks


def _small_devices(devices: Sequence[DeviceSummary], screen: Screen) -> None:
    if devices:
        screen.blank()
    for device in devices:
        held = f"{units.size(device.peak.bytes)} at the peak, {units.size(device.end.bytes)} at the end"
        screen.text(Text.assemble(("ALSO", "bold"), f"  {device.device}: {held}"), hanging=6)


def _holding(
    label: str,
    holding: Holding,
    when: str,
    device: DeviceSummary,
    summary: Summary,
    screen: Screen,
    names: PlaceNames,
) -> None:
    screen.blank()
    held = f"{units.size(holding.bytes)} in {units.counted(holding.blocks, 'block')}"
    amount = held if holding.blocks else "nothing is live"
    screen.text(Text.assemble((label, "bold"), f"  {device.device}: {amount} {when}"), hanging=len(label) + 2)
    if holding.sites and not any(site.site.filename for site in holding.sites):
        reason = ' (stacks="none")' if summary.program.stacks == "none" else ""
        screen.text(f"The trace has no stacks{reason}, so no lines of code can be named.", 2)
        return
    for site in holding.sites:
        amount = f"{units.share(site.bytes, holding.bytes):>5}  {units.size(site.bytes):>9}"
        place = names.place(site.site)
        if site.backward_bytes:
            place += f" (of it {units.size(site.backward_bytes)} in its backward)"
        frames = names.stack(site.stack_id)
        screen.entry(amount, place, names.source(site.site), 0, _SIZE_COLUMN + 5, frames=frames)
    if holding.more_sites:
        amount = f"{units.share(holding.more_bytes, holding.bytes):>5}  {units.size(holding.more_bytes):>9}"
        screen.text(f"{amount}  in {units.counted(holding.more_sites, 'more line')}", style="dim")


def _growth(device: DeviceSummary, screen: Screen, names: PlaceNames) -> None:
    screen.blank()
    growth = device.growth
    title = "live at the end of each step" if growth else "live over time (the trace has no steps)"
    screen.text(Text.assemble(("GROWTH", "bold"), f"  {device.device}, {title}"), hanging=8)
    levels: Sequence[int] = growth.samples if growth else device.levels
    lowest, highest = (growth.lowest, growth.highest) if growth else (min(levels, default=0), max(levels, default=0))
    chart = units.sparkline(levels, min(screen.width - 32, 60), plain=screen.plain)
    screen.text(Text.assemble((chart, "green"), f"  {units.size(lowest)} to {units.size(highest)}"), 2)
    if growth:
        slope = units.rate(growth.slope, "step") if growth.steps > growth.warmup + 1 else "too few steps to tell"
        warmup = f" after {units.counted(growth.warmup, 'step')} of warm-up" if growth.steps > growth.warmup + 1 else ""
        screen.text(
            f"first {units.size(growth.first)}, median {units.size(growth.median)}, last {units.size(growth.last)}; "
            f"slope {slope}{warmup}",
            2,
        )
    # A line that grew by less than a thousandth of the peak explains nothing.
    growing = [site for site in device.growing if site.bytes * 1000 >= device.peak.bytes and site.site.filename]
    leaking = {(site.site.filename, site.site.line) for leak in device.leaks.leaks for site in leak.sites}
    if growing:
        screen.text("Lines that hold more than after the warm-up:", 2)
    for site in growing[:_GROWING_SITES]:
        leak = " (leak)" if (site.site.filename, site.site.line) in leaking else ""
        place, frames = names.place(site.site) + leak, names.stack(site.stack_id)
        screen.entry(units.change(site.bytes), place, None, 0, _SIZE_COLUMN + 5, frames=frames)


def _notes(summary: Summary, screen: Screen) -> None:
    notes = []
    if summary.unmatched_frees and summary.integrity.state == "complete":
        frees = units.counted(summary.unmatched_frees, "free")
        notes.append(f"{frees} of blocks that were made before the recording began.")
    if not summary.steps and summary.devices:
        notes.append("Steps make the verdict sharper: call alloctrace.step() at the end of each one.")
    if notes:
        screen.blank()
    for note in notes:
        screen.text(note, style="dim")
