"""The verdict: every finding, the most pressing first, then the peak, the end and the growth of each device.

docs/json.md has the fields of the JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..analysis.free_memory.oom import FRAGMENTED
from ..analysis.leaks.growth import StepGrowth
from ..analysis.summary import DeviceSummary, Holding, Summary
from ..reading.integrity import Integrity
from ..reading.sites import Site
from . import units
from .finding import Finding, write_finding
from .inefficiencies import inefficiency_finding
from .integrity import IN_DIAGNOSIS, effects
from .leaks import explanation, leak_data, leak_findings, write_leak
from .package_lines import inside_data, write_inside
from .roles import roles_sentence
from .screen import Screen
from .site_names import Frames, SiteNames

_GROWING_SITES = 5
_ALIKE = 0.2
"""The end is like the peak if what its lines hold differs by at most this share of the peak."""
_SIZE_COLUMN = 11


def diagnosis(summary: Summary, names: SiteNames | None = None) -> tuple[Finding, ...]:
    """Everything that is wrong, the most pressing first: what is missing from the trace, failed allocations, leaks (or
    that there are none), the conditions of each device, those with the most bytes first, and last the minor leaks.
    names: default those of `SiteNames`."""
    names = names or SiteNames(summary.program.working_directory)
    inefficiencies = [
        inefficiency
        for device in summary.devices
        for inefficiency in device.inefficiencies
        # The failed allocation names the same pieces already.
        if not (
            inefficiency.kind == "fragmentation" and device.refused is not None and device.refused.verdict == FRAGMENTED
        )
    ]
    leaks = leak_findings(summary, names)
    return (
        *_incomplete(summary.integrity),
        *_refused(summary, names),
        *(one for one in leaks if one.kind != "minor_leak"),
        *(
            inefficiency_finding(one, names, summary.advisor)
            for one in sorted(inefficiencies, key=lambda one: -one.bytes)
        ),
        *(one for one in leaks if one.kind == "minor_leak"),
    )


def _refused(summary: Summary, names: SiteNames) -> list[Finding]:
    refused = [(device.refused, device.leaks.leaks) for device in summary.devices if device.refused is not None]
    if not refused:
        return []
    from .oom import oom_finding

    return [
        oom_finding(one, names, summary.advisor, leaked)
        for one, leaked in sorted(refused, key=lambda pair: -pair[0].requested_bytes)
    ]


def _incomplete(integrity: Integrity) -> tuple[Finding, ...]:
    if integrity.whole:
        return ()
    sentences = effects(integrity, IN_DIAGNOSIS)
    return (Finding("incomplete", f"The trace is {integrity}", "", 0, None, None, 0, sentences),)


def write_verdict(summary: Summary, screen: Screen, frames: Frames | None = None) -> None:
    """Writes a summary to the screen, but not what is missing from the trace: see `write_incomplete`. frames: given if
    whole stacks are to be shown."""
    names = SiteNames(summary.program.working_directory, frames)
    _header(summary, screen, names)
    if not summary.devices:
        _nothing(summary, screen)
        return
    found = [finding for finding in diagnosis(summary) if finding.kind != "incomplete"]
    write_findings([finding for finding in found if finding.kind != "minor_leak"], screen, names)
    small = [device for device in summary.devices if summary.is_small(device) or _is_aside(device, summary)]
    for device in summary.devices:
        if device not in small:
            _device(device, summary, screen, names)
    _small_devices(small, screen)
    _minor_leaks([finding for finding in found if finding.kind == "minor_leak"], screen)
    _notes(summary, screen)


def write_leaks(summary: Summary, screen: Screen, top: int, frames: Frames | None = None) -> None:
    """Writes only the first findings on leaks. frames: as for write_verdict."""
    names = SiteNames(summary.program.working_directory, frames)
    _header(summary, screen, names)
    if not summary.devices:
        _nothing(summary, screen)
        return
    found = leak_findings(summary)
    # Only leaks are left out: a device that could not be judged is always shown.
    leaks = [finding for finding in found if finding.kind in ("leak", "growth", "minor_leak")]
    more = leaks[top:]
    shown = [*leaks[:top], *(finding for finding in found if finding.kind not in ("leak", "growth", "minor_leak"))]
    write_findings([finding for finding in shown if finding.kind != "minor_leak"], screen, names)
    _minor_leaks([finding for finding in shown if finding.kind == "minor_leak"], screen)
    if more:
        screen.blank()
        screen.text(f"and {units.counted(len(more), 'more leak')}", style="dim")


def _header(summary: Summary, screen: Screen, names: SiteNames) -> None:
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
    whole = summary.integrity.whole
    screen.text(
        ", ".join(facts) + (f": trace {summary.integrity}" if whole else ", as far as it could be read"), hanging=2
    )


def _nothing(summary: Summary, screen: Screen) -> None:
    screen.blank()
    if summary.integrity.whole:
        recorded = ", ".join(summary.program.recorded_devices) or "no device"
        screen.text(f"Nothing was allocated through torch during the recording ({recorded}).")
    else:
        screen.text("No allocation could be read from this trace.")


def write_findings(found: Sequence[Finding], screen: Screen, names: SiteNames) -> None:
    """Writes findings, each after a blank line."""
    explained = False
    for finding in found:
        screen.blank()
        indent = write_finding(finding, screen, names)
        stack = names.stack(finding.stack_id)
        if finding.leak is None:
            screen.stack(stack, indent)
            continue
        write_leak(finding.leak, stack, indent, screen, names)
        # The first one is explained, which is enough for all.
        if not explained and finding.leak.line.filename:
            screen.text(explanation(finding.leak), indent, style="dim")
        explained = True


def _minor_leaks(found: Sequence[Finding], screen: Screen) -> None:
    """Write minor leaks dimmed, a line or two each."""
    if found:
        screen.blank()
    for finding in found:
        screen.text(f"NOTE  {finding.title}.", hanging=6, style="dim")


def _device(device: DeviceSummary, summary: Summary, screen: Screen, names: SiteNames) -> None:
    when = f"at {units.duration(device.peak.seconds)}"
    if device.peak.step is not None:
        when += f" in step {device.peak.step}"
    _holding("PEAK", device.peak, when, device, summary, screen, names)
    if _resembles(device.end, device.peak):
        held = f"{units.size(device.end.bytes)} in {units.counted(device.end.blocks, 'block')}"
        screen.blank()
        line = Text.assemble(
            ("AT THE END", "bold"), f"  {device.device}: {held}, mostly from the same lines as at the peak"
        )
        screen.text(line, hanging=12)
    else:
        _holding("AT THE END", device.end, "when the trace ends", device, summary, screen, names)
    _growth(device, screen, names)


def _is_aside(device: DeviceSummary, summary: Summary) -> bool:
    """Whether nothing is wrong with the memory of the CPU, where a GPU is what it is about."""
    is_wrong = device.leaks.leaks or device.inefficiencies or device.refused is not None
    return device.device in ("cpu", "pinned") and summary.devices[0].device not in ("cpu", "pinned") and not is_wrong


def _resembles(end: Holding, peak: Holding) -> bool:
    """Whether the same lines hold nearly the same: showing them again would say nothing."""
    before, after = ({site.site: site.bytes for site in holding.sites} for holding in (peak, end))
    different = sum(abs(before.get(site, 0) - after.get(site, 0)) for site in {*before, *after})
    return bool(end.blocks) and different <= _ALIKE * peak.bytes


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
    names: SiteNames,
) -> None:
    screen.blank()
    held = f"{units.size(holding.bytes)} in {units.counted(holding.blocks, 'block')}"
    amount = held if holding.blocks else "nothing is live"
    screen.text(Text.assemble((label, "bold"), f"  {device.device}: {amount} {when}"), hanging=len(label) + 2)
    if holding.blocks:
        screen.text(roles_sentence(holding.roles, holding.bytes), 2, hanging=4)
    has_stacks = summary.program.stacks != "none" and all(site.site.function for site in holding.sites)
    if holding.sites and not has_stacks and not any(site.site.filename for site in holding.sites):
        reason = ' (stacks="none")' if summary.program.stacks == "none" else ""
        screen.text(f"The trace has no stacks{reason}, so no lines of code can be named.", 2)
        if not any(site.site.function for site in holding.sites):
            return
    for site, inside in zip(holding.sites, holding.insides, strict=True):
        amount = f"{units.share(site.bytes, holding.bytes):>5}  {units.size(site.bytes):>9}"
        name, frames = names.holder(site), names.stack(site.stack_id)
        screen.entry(amount, name, names.source(site.site), 0, _SIZE_COLUMN + 5, frames=frames)
        write_inside(inside, holding.bytes, screen, names, _SIZE_COLUMN + 5)
    if holding.more_sites:
        amount = f"{units.share(holding.more_bytes, holding.bytes):>5}  {units.size(holding.more_bytes):>9}"
        screen.text(f"{amount}  in {units.counted(holding.more_sites, 'more line')}", style="dim")


def _growth(device: DeviceSummary, screen: Screen, names: SiteNames) -> None:
    screen.blank()
    growth = device.growth
    title = "live at the end of each step" if growth else "live over time (the trace has no steps)"
    screen.text(Text.assemble(("GROWTH", "bold"), f"  {device.device}, {title}"), hanging=8)
    drawn = growth.samples if growth else device.levels
    lowest, highest = (
        (growth.lowest_bytes, growth.highest_bytes) if growth else (min(drawn, default=0), max(drawn, default=0))
    )
    chart = units.sparkline(drawn, min(screen.width - 32, 60), plain=screen.plain)
    screen.text(Text.assemble((chart, "green"), f"  {units.size(lowest)} to {units.size(highest)}"), 2)
    if growth:
        slope = "too few steps for a slope"
        if growth.steps > growth.warmup + 1:
            warmup = units.counted(growth.warmup, "step")
            slope = f"slope {units.rate(growth.bytes_per_step, 'step')} after {warmup} of warm-up"
        first, median, last = map(units.size, (growth.first_bytes, growth.median_bytes, growth.last_bytes))
        screen.text(f"first {first}, median {median}, last {last}; {slope}", 2)
    # A line that grew by less than a thousandth of the peak explains nothing.
    growing = [site for site in device.growing if site.grown_bytes * 1000 >= device.peak.bytes and site.site.filename]
    leaking = {(site.site.filename, site.site.line) for leak in device.leaks.leaks for site in leak.sites}
    if growing:
        screen.text("Lines that hold more than they did after the warm-up:", 2)
    for site in growing[:_GROWING_SITES]:
        leak = " (leak)" if (site.site.filename, site.site.line) in leaking else ""
        name, frames = names.site(site.site) + leak, names.stack(site.stack_id)
        screen.entry(units.change(site.grown_bytes), name, None, 0, _SIZE_COLUMN + 5, frames=frames)


def _notes(summary: Summary, screen: Screen) -> None:
    notes = []
    if summary.unmatched_frees and summary.integrity.whole:
        frees = units.counted(summary.unmatched_frees, "free")
        notes.append(f"{frees} of blocks that were allocated before the recording began.")
    if not summary.steps and summary.devices:
        notes.append("Steps make the verdict more precise: call alloctrace.step() at the end of each one.")
    if notes:
        screen.blank()
    for note in notes:
        screen.text(note, style="dim")


def verdict_data(summary: Summary) -> dict[str, Any]:
    """Return the summary as plain values."""
    return {
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
        "findings": [_finding_data(finding) for finding in diagnosis(summary)],
        "devices": [_device_data(device) for device in summary.devices],
    }


def _finding_data(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "title": finding.title,
        "device": finding.device,
        "bytes": finding.bytes,
        "confidence": None if finding.confidence is None else round(finding.confidence, 4),
        "site": _site_data(finding.site),
        "stack_id": finding.stack_id,
        "sentences": list(finding.sentences),
        **(leak_data(finding.leak) if finding.leak is not None else {}),
    }


def _device_data(device: DeviceSummary) -> dict[str, Any]:
    return {
        "device": device.device,
        "allocations": device.allocations,
        "total_bytes": device.total_bytes,
        "peak": _holding_data(device.peak),
        "end": _holding_data(device.end),
        "growth": _growth_data(device.growth) if device.growth is not None else None,
        "growing": [
            {
                "site": _site_data(site.site),
                "stack_id": site.stack_id,
                "before_bytes": site.before_bytes,
                "after_bytes": site.after_bytes,
                "bytes_per_unit": round(site.bytes_per_unit),
            }
            for site in device.growing
        ],
        "leaks_judged": device.leaks.judged,
        "live_bytes_over_time": list(device.levels),
    }


def _holding_data(holding: Holding) -> dict[str, Any]:
    return {
        "bytes": holding.bytes,
        "blocks": holding.blocks,
        "event": holding.event,
        "seconds": holding.seconds,
        "step": holding.step,
        "sites": [
            {
                "site": _site_data(site.site),
                "bytes": site.bytes,
                "backward_bytes": site.backward_bytes,
                "blocks": site.blocks,
                "stack_id": site.stack_id,
                "inside": inside_data(inside),
            }
            for site, inside in zip(holding.sites, holding.insides, strict=True)
        ],
        "more_sites": holding.more_sites,
        "more_bytes": holding.more_bytes,
        "roles": [dataclasses.asdict(part) for part in holding.roles.roles],
        "roles_are_named": holding.roles.are_named,
    }


def _growth_data(growth: StepGrowth) -> dict[str, Any]:
    return {
        "steps": growth.steps,
        "warmup": growth.warmup,
        "first_bytes": growth.first_bytes,
        "median_bytes": growth.median_bytes,
        "last_bytes": growth.last_bytes,
        "lowest_bytes": growth.lowest_bytes,
        "highest_bytes": growth.highest_bytes,
        "bytes_per_step": round(growth.bytes_per_step),
        "seconds_per_step": growth.seconds_per_step,
        "samples": list(growth.samples),
    }


def _site_data(site: Site | None) -> dict[str, Any] | None:
    return dataclasses.asdict(site) if site is not None else None
