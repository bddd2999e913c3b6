"""Verdict: findings, then peak, end and growth of each device, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..analysis.free_memory.inefficiency import Inefficiency
from ..analysis.free_memory.program_memory import AUTOCAST_CACHE, GARBAGE
from ..analysis.free_memory.unused_gradients import UNUSED_GRADIENTS
from ..analysis.free_memory.unused_graph import UNUSED_GRAPH
from ..analysis.leaks.growth import StepGrowth
from ..analysis.leaks.leak import AUTOCAST, GRAPHS, Doubt
from ..analysis.summary import DeviceSummary, Holding, Summary
from ..reading.integrity import Integrity
from ..reading.names import HOST_DEVICES
from ..reading.sites import Site
from . import units
from .children import children_data, write_children
from .finding import NOTES, Finding, write_finding
from .growth import growth_data
from .inefficiencies import inefficiency_finding
from .integrity import IN_DIAGNOSIS, effects
from .leaks import leak_data, leak_findings, write_leak
from .package_lines import package_lines_data, write_package_lines
from .peak_advice import find_unused_graph, peak_advice
from .roles import roles_sentence
from .screen import Screen
from .site_names import Frames, SiteNames

_MAX_GROWING_SITES = 5
_MAX_DIFFERENCE = 0.2  # between the lines at the end and at the peak, as a share of the peak
_SIZE_COLUMN = 11
_LEAKS = ("leak", "growth")


NO_STACKS = 'The trace has no stacks (stacks="none"), so no lines of code can be named.'


def diagnosis(summary: Summary, names: SiteNames | None = None) -> tuple[Finding, ...]:
    """Return all findings, the most severe first.

    The order is: incomplete trace, failed allocations, leaks, unused graphs, unused gradients, undecided growth
    (or the absence of leaks), inefficiencies by bytes, minor leaks.
    """
    names = names or SiteNames(summary.program.working_directory)
    inefficiencies = [
        inefficiency
        for device in summary.devices
        for inefficiency in device.inefficiencies
        if not _is_described(inefficiency, device) and not _is_of_other_finding(inefficiency, device)
    ]
    failures = _list_failed_allocations(summary, names)
    failed_lines = [(failure.device, failure.site) for failure in failures if failure.site and failure.site.filename]
    leaks = [
        finding
        for finding in leak_findings(summary, names)
        if not _is_of_unused_graph(finding, summary)
        and not (finding.kind in NOTES and (finding.device, finding.site) in failed_lines)
    ]
    inefficiencies = sorted(inefficiencies, key=lambda finding: -finding.bytes)
    unused = [
        finding for kind in (UNUSED_GRAPH, UNUSED_GRADIENTS) for finding in inefficiencies if finding.kind == kind
    ]
    return (
        *_list_incomplete(summary.integrity),
        *failures,
        *(finding for finding in leaks if finding.kind in _LEAKS),
        *(inefficiency_finding(finding, names, summary.advisor) for finding in unused),
        *(finding for finding in leaks if finding.kind not in (*NOTES, *_LEAKS)),
        *(inefficiency_finding(finding, names, summary.advisor) for finding in inefficiencies if finding not in unused),
        *(finding for finding in leaks if finding.kind in NOTES),
    )


def _is_of_unused_graph(finding: Finding, summary: Summary) -> bool:
    """Return whether a note on accumulation repeats an unused graph: both have blocks of it if both exceed the peak."""
    growth = finding.growth
    if growth is None or growth.doubt is not Doubt.ACCUMULATED or not growth.has_graph:
        return False
    [graph] = [find_unused_graph(device) for device in summary.devices if device.device == growth.device]
    return graph is not None and graph.bytes + growth.allocated_bytes > graph.total_bytes


def _is_of_other_finding(inefficiency: Inefficiency, device: DeviceSummary) -> bool:
    """Return whether an unused graph is what a leak or autocast's cache keeps.

    Of a leak, the line is the same, or both together exceed the peak. Copies of weights in the cache have graphs.
    """
    if inefficiency.kind != UNUSED_GRAPH:
        return False
    if any(other.kind == "autocast" and other.bytes >= inefficiency.bytes for other in device.inefficiencies):
        return True
    site = inefficiency.site
    line = None if site is None or not site.filename else (site.filename, site.line)
    for leak in device.leaks.leaks:
        if leak.holder is not None and leak.holder.through in GRAPHS:
            frames = [(frame.filename, frame.line) for frame in leak.path]
            lines = {(leak.line.filename, leak.line.line), *frames}
            if line in lines or leak.allocated_bytes + inefficiency.bytes > inefficiency.total_bytes:
                return True
    return False


def _is_described(inefficiency: Inefficiency, device: DeviceSummary) -> bool:
    """Return whether the finding on a failed allocation or on a leak describes an inefficiency."""
    failure = device.failure
    if inefficiency.kind == GARBAGE:
        return failure is not None and failure.cause == GARBAGE
    if inefficiency.kind == "autocast":
        holders = [leak.holder for leak in device.leaks.leaks]
        is_leak = any(holder is not None and holder.through == AUTOCAST for holder in holders)
        return is_leak or (failure is not None and failure.cause == AUTOCAST_CACHE)
    return (
        inefficiency.kind == "fragmentation"
        and failure is not None
        and not failure.needs_finding_on_fragmentation(inefficiency.bytes)
    )


def _list_failed_allocations(summary: Summary, names: SiteNames) -> list[Finding]:
    failures = [device.failure for device in summary.devices if device.failure is not None]
    if not failures:
        return []
    from .oom import oom_finding

    return [
        oom_finding(failure, names, summary.advisor)
        for failure in sorted(failures, key=lambda failure: -failure.requested_bytes)
    ]


def _list_incomplete(integrity: Integrity) -> tuple[Finding, ...]:
    if integrity.is_complete:
        return ()
    sentences = effects(integrity, IN_DIAGNOSIS)
    return (Finding("incomplete", f"The trace is {integrity}", "", 0, None, None, 0, sentences),)


def write_verdict(summary: Summary, screen: Screen, frames: Frames | None = None) -> None:
    """Write the verdict, with stacks if `frames` is given. `write_incomplete` has to precede it."""
    names = SiteNames(summary.program.working_directory, frames)
    _write_header(summary, screen, names)
    if not summary.devices:
        screen.blank()
        screen.text(no_allocations(summary))
        if summary.children is not None:
            write_children(summary.children, screen, names)
        return
    findings = [finding for finding in diagnosis(summary) if finding.kind != "incomplete"]
    write_findings([finding for finding in findings if finding.kind not in NOTES], screen, names)
    small_devices = [
        device for device in summary.devices if summary.is_small(device) or _is_unremarkable_cpu(device, summary)
    ]
    for device in summary.devices:
        if device not in small_devices:
            _write_device(device, summary, screen, names)
    _write_small_devices(small_devices, screen)
    if summary.children is not None:
        write_children(summary.children, screen, names)
    _write_small_notes([finding for finding in findings if finding.kind in NOTES], screen)
    _write_notes(summary, screen)


def write_leaks(summary: Summary, screen: Screen, top: int, frames: Frames | None = None) -> None:
    names = SiteNames(summary.program.working_directory, frames)
    _write_header(summary, screen, names)
    if not summary.devices:
        screen.blank()
        screen.text(no_allocations(summary))
    findings = leak_findings(summary) if summary.devices else ()
    # `top` limits only leaks: a device that could not be judged must always be listed.
    leaks = [finding for finding in findings if finding.kind in ("leak", "growth", "minor_leak")]
    omitted = leaks[top:]
    written = [*leaks[:top], *(finding for finding in findings if finding.kind not in ("leak", "growth", "minor_leak"))]
    write_findings([finding for finding in written if finding.kind not in NOTES], screen, names)
    _write_small_notes([finding for finding in written if finding.kind in NOTES], screen)
    if omitted:
        screen.blank()
        screen.text(f"and {units.counted(len(omitted), 'more leak')}", style="dim")
    if summary.children is not None and (summary.children.runs or summary.children.unjudged):
        write_children(summary.children, screen, names)


def _write_header(summary: Summary, screen: Screen, names: SiteNames) -> None:
    program, devices = summary.program, [device.device for device in summary.devices]
    versions = [f"torch {program.torch}" if program.torch else "", f"Python {program.python}" if program.python else ""]
    rank = f"rank {program.rank}" if program.rank not in ("", "0") else ""
    title = Text(names.command(program), style="bold")
    title.append("".join(f", {part}" for part in [*versions, rank, *devices] if part), style="not bold")
    screen.text(title, hanging=2)
    facts = [
        units.duration(summary.seconds),
        units.counted(summary.steps, "step") if summary.steps else "no steps",
        f"{units.counted(summary.integrity.events, 'event')} in {units.size(summary.file_bytes)}",
    ]
    is_complete = summary.integrity.is_complete
    screen.text(
        ", ".join(facts) + (f": trace {summary.integrity}" if is_complete else ", as far as it could be read"),
        hanging=2,
    )


def no_allocations(summary: Summary) -> str:
    """Return a sentence on a trace without allocations."""
    if not summary.integrity.is_complete:
        return "No allocation could be read from this trace."
    recorded = ", ".join(summary.program.recorded_devices) or "no device"
    return f"Nothing was allocated through torch during the recording ({recorded})."


def write_findings(findings: Sequence[Finding], screen: Screen, names: SiteNames) -> None:
    for finding in findings:
        screen.blank()
        indent = write_finding(finding, screen, names)
        stack = names.stack(finding.stack_id)
        if finding.leak is None:
            screen.stack(stack, indent)
            continue
        write_leak(finding.leak, stack, indent, screen, names)


def _write_small_notes(findings: Sequence[Finding], screen: Screen) -> None:
    if findings:
        screen.blank()
    for finding in findings:
        screen.text(" ".join([f"NOTE  {finding.title}.", *finding.sentences]), hanging=6, style="dim")


def _write_device(device: DeviceSummary, summary: Summary, screen: Screen, names: SiteNames) -> None:
    when = f"at {units.duration(device.peak.seconds)}"
    if device.peak.step is not None:
        when += f" in step {device.peak.step}"
    _write_holding("PEAK", device.peak, when, device, summary, screen, names)
    if _is_similar(device.end, device.peak):
        amount = f"{units.size(device.end.allocated_bytes)} allocated in {units.counted(device.end.blocks, 'block')}"
        screen.blank()
        line = Text.assemble(
            ("AT THE END", "bold"), f"  {device.device}: {amount}, mostly from the same lines as at the peak"
        )
        screen.text(line, hanging=12)
    else:
        _write_holding("AT THE END", device.end, "when the trace ends", device, summary, screen, names)
    _write_growth(device, screen, names)


def _is_unremarkable_cpu(device: DeviceSummary, summary: Summary) -> bool:
    """Return whether the device is host memory without findings, in a trace of a GPU."""
    findings = device.leaks.leaks or device.inefficiencies or device.failure is not None
    return device.device in HOST_DEVICES and summary.devices[0].device not in HOST_DEVICES and not findings


def _is_similar(end: Holding, peak: Holding) -> bool:
    peak_bytes, end_bytes = ({site.site: site.bytes for site in holding.sites} for holding in (peak, end))
    difference = sum(abs(peak_bytes.get(site, 0) - end_bytes.get(site, 0)) for site in {*peak_bytes, *end_bytes})
    return bool(end.blocks) and difference <= _MAX_DIFFERENCE * peak.bytes


def _write_small_devices(devices: Sequence[DeviceSummary], screen: Screen) -> None:
    if devices:
        screen.blank()
    for device in devices:
        peak, end = (units.size(holding.allocated_bytes) for holding in (device.peak, device.end))
        amounts = f"{peak} allocated at the peak, {end} at the end"
        screen.text(Text.assemble(("ALSO", "bold"), f"  {device.device}: {amounts}"), hanging=6)


def _write_holding(
    label: str, holding: Holding, when: str, device: DeviceSummary, summary: Summary, screen: Screen, names: SiteNames
) -> None:
    screen.blank()
    amount_text = f"{units.size(holding.allocated_bytes)} allocated in {units.counted(holding.blocks, 'block')}"
    amount = amount_text if holding.blocks else "nothing is live"
    screen.text(Text.assemble((label, "bold"), f"  {device.device}: {amount} {when}"), hanging=len(label) + 2)
    if holding.blocks:
        screen.text(roles_sentence(holding.roles, holding.bytes), 2, hanging=4)
    if holding.sites and summary.program.stacks == "none":
        screen.text(NO_STACKS, 2)
        if not any(site.site.function for site in holding.sites):
            return
    for site, package_lines in zip(holding.sites, holding.package_lines, strict=True):
        amount = f"{units.share(site.bytes, holding.bytes):>5}  {units.size(site.bytes):>9}"
        name, frames = names.holder(site), names.stack(site.stack_id)
        screen.entry(amount, name, names.source(site.site), 0, _SIZE_COLUMN + 5, frames=frames)
        write_package_lines(package_lines, holding.bytes, screen, names, _SIZE_COLUMN + 5)
    if holding.more_sites:
        amount = f"{units.share(holding.more_bytes, holding.bytes):>5}  {units.size(holding.more_bytes):>9}"
        screen.text(f"{amount}  in {units.counted(holding.more_sites, 'more line')}", style="dim")
    if label == "PEAK" and device.device not in HOST_DEVICES:
        for sentence in peak_advice(device, names):
            screen.text(sentence, 2)


def _write_growth(device: DeviceSummary, screen: Screen, names: SiteNames) -> None:
    screen.blank()
    growth = device.growth
    title = "live at the end of each step" if growth else "allocated over time (the trace has no steps)"
    screen.text(Text.assemble(("GROWTH", "bold"), f"  {device.device}, {title}"), hanging=8)
    levels = growth.samples if growth else device.levels
    lowest, highest = (
        (growth.lowest_bytes, growth.highest_bytes) if growth else (min(levels, default=0), max(levels, default=0))
    )
    chart = units.sparkline(levels, min(screen.width - 32, 60), plain=screen.plain)
    screen.text(Text.assemble((chart, "green"), f"  {units.size(lowest)} to {units.size(highest)}"), 2)
    if growth:
        slope = "too few steps for a slope"
        if growth.steps > growth.warmup + 1:
            warmup = units.counted(growth.warmup, "step")
            slope = f"slope {units.rate(growth.bytes_per_step, 'step')} after {warmup} of warm-up"
        first, median, last = map(units.size, (growth.first_bytes, growth.median_bytes, growth.last_bytes))
        screen.text(f"first {first}, median {median}, last {last}; {slope}", 2)
    # Skip lines that grew by less than a thousandth of the peak.
    growing = [site for site in device.growing if site.grown_bytes * 1000 >= device.peak.bytes and site.site.filename]
    leaking = {(site.site.filename, site.site.line) for leak in device.leaks.leaks for site in leak.sites}
    if growing:
        screen.text("Lines that hold more than after the warm-up:", 2)
    for site in growing[:_MAX_GROWING_SITES]:
        leak = " (leak)" if (site.site.filename, site.site.line) in leaking else ""
        name, frames = names.site(site.site) + leak, names.stack(site.stack_id)
        screen.entry(units.change(site.grown_bytes), name, None, 0, _SIZE_COLUMN + 5, frames=frames)


def _write_notes(summary: Summary, screen: Screen) -> None:
    notes = []
    if summary.unmatched_frees and summary.integrity.is_complete:
        frees = units.counted(summary.unmatched_frees, "free")
        notes.append(f"{frees} of blocks that were allocated before the recording began.")
    if not summary.steps and summary.devices:
        notes.append("Steps make the verdict more precise: call alloctrace.step() at the end of each one.")
    if notes:
        screen.blank()
    for note in notes:
        screen.text(note, style="dim")


def verdict_data(summary: Summary) -> dict[str, Any]:
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
        "children": None if summary.children is None else children_data(summary.children),
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
        **(growth_data(finding.growth) if finding.growth is not None else {}),
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
        "allocated_bytes": holding.allocated_bytes,
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
                "inside": package_lines_data(package_lines),
            }
            for site, package_lines in zip(holding.sites, holding.package_lines, strict=True)
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
