"""Leak findings as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..analysis.leaks.clock import LEAST_ALLOCATIONS, LEAST_STEPS
from ..analysis.leaks.leak import BACKLOG, CERTAIN, GROWING, LIKELY, SURVIVORS, Leak, LeakingSite
from ..analysis.limit import Exceeded, GrowthLimit
from ..analysis.summary import DeviceSummary, Summary
from . import units
from .cures import cure
from .finding import Finding
from .growth import (
    describe_basis,
    describe_end,
    describe_full,
    describe_holder,
    describe_no_holder,
    describe_notes,
    describe_outside,
    describe_referrers,
    describe_undecided,
    on_device,
)
from .package_lines import describe_library_call
from .screen import Screen
from .site_names import SiteNames

_CONFIDENCE_WORDS = ((CERTAIN, "almost certain"), (LIKELY, "likely"), (0.0, "possible"))
_FORECAST_GROWTH = 1 << 30
_MAX_SITES = 5
_MAX_CALLERS = 3


def leak_findings(summary: Summary, names: SiteNames | None = None) -> tuple[Finding, ...]:
    """Return the findings on leaks, the most severe first; empty only if nothing was allocated.

    The order is: leaks (or their absence), undecided growth, devices not judged, notes, minor leaks.
    """
    names = names or SiteNames(summary.program.working_directory)
    leaks = sorted(
        (leak for device in summary.devices for leak in device.leaks.leaks), key=lambda leak: leak.weight, reverse=True
    )
    findings = [_describe_leak(leak, summary, names) for leak in leaks if not leak.minor]
    judged = [device for device in summary.devices if device.leaks.judged]
    unjudged = [device for device in summary.devices if not device.leaks.judged and not summary.is_small(device)]
    findings += [finding for device in judged for finding in describe_undecided(device.leaks, summary, names)]
    findings += [describe_outside(growth, names) for growth in summary.outside_growth]
    if not findings and judged:
        findings.append(_describe_no_leak(judged, summary, names))
    if unjudged:
        findings.append(_describe_unjudged(unjudged))
    return (
        *(_add_library_call(finding, summary, names) for finding in findings),
        *(
            _add_library_call(note, summary, names)
            for device in judged
            for note in describe_notes(device.leaks, summary, names)
        ),
        *(_describe_minor_leak(leak, summary, names) for leak in leaks if leak.minor),
    )


def _add_library_call(finding: Finding, summary: Summary, names: SiteNames) -> Finding:
    """Name the module and the library line of a finding whose line only calls a library, such as trainer.train()."""
    calls = [device.library_calls for device in summary.devices if device.device == finding.device]
    call = calls[0].get(finding.stack_id) if calls and finding.site is not None else None
    if call is None:
        return finding
    place = describe_library_call(call, names)
    sentence = f"{place[0].upper()}{place[1:]}."
    brief = (*finding.brief[:1], sentence, *finding.brief[1:])
    return dataclasses.replace(finding, sentences=(sentence, *finding.sentences), brief=brief)


def exceeded_sentence(exceeded: Exceeded, limit: GrowthLimit) -> str:
    amount = f"{units.size(exceeded.bytes)}, {units.rate(exceeded.rate, exceeded.unit)}"
    where = exceeded.device if exceeded.process is None else f"{exceeded.device} in child process {exceeded.process}"
    return f"{where} leaks {amount}: more than {limit.text} (--fail-above)"


def confidence_word(confidence: float) -> str:
    """Return "almost certain" (from 90 %), "likely" (from 70 %) or "possible"."""
    return next(word for minimum, word in _CONFIDENCE_WORDS if confidence >= minimum)


def _describe_leak(leak: Leak, summary: Summary, names: SiteNames) -> Finding:
    device = on_device(leak.device, summary)
    return Finding(
        kind="growth" if leak.kind == BACKLOG else "leak",
        title=f"{_describe_place(leak, names)}: {units.rate(leak.bytes_per_unit, leak.unit)}{device}",
        device=leak.device,
        bytes=leak.allocated_bytes,
        confidence=leak.confidence,
        site=leak.line,
        stack_id=leak.sites[0].stack_id,
        sentences=tuple(_list_sentences(leak, summary, names)),
        brief=_list_brief(leak, summary, names),
        leak=leak,
        holder=leak.holder,
    )


def _describe_place(leak: Leak, names: SiteNames) -> str:
    """Return the line to inspect, with the number of other lines whose bytes the leak sums."""
    others = _count_other_lines(leak)
    return names.site(leak.line) + (f" and {units.counted(others, 'more line')}" if others else "")


def _count_other_lines(leak: Leak) -> int:
    """Return the number of lines besides the line to inspect; 0 if that line calls the lines that allocate."""
    place = leak.line.filename, leak.line.line
    others = sum((site.site.filename, site.site.line) != place for site in leak.sites)
    return 0 if others == len(leak.sites) else others


def _describe_minor_leak(leak: Leak, summary: Summary, names: SiteNames) -> Finding:
    device = on_device(leak.device, summary)
    verb = "keep" if _count_other_lines(leak) else "keeps"
    title = f"{_describe_place(leak, names)} {verb} {units.rate(leak.bytes_per_unit, leak.unit).lstrip('+')}{device}"
    cost = f"{units.size(leak.allocated_bytes)} in this run"
    if leak.forecast_seconds is not None:
        cost += f"; {leak.device} would be full in {units.duration(leak.forecast_seconds)}"
    return Finding(
        kind="minor_leak",
        title=f"{title}: a minor leak ({cost})",
        device=leak.device,
        bytes=leak.allocated_bytes,
        confidence=leak.confidence,
        site=leak.line,
        stack_id=leak.sites[0].stack_id,
        sentences=(),
        leak=leak,
        holder=leak.holder,
    )


def _list_sentences(leak: Leak, summary: Summary, names: SiteNames) -> list[str]:
    is_live_at_end = leak.allocated_bytes_at_end >= leak.allocated_bytes // 2
    when = "at the end" if is_live_at_end else describe_end(leak.unit)
    describe = {GROWING: _describe_growing, BACKLOG: _describe_backlog}.get(leak.kind, _describe_survivors)
    sentences = describe(leak, when)
    if leak.holder is not None:
        sentences.append(describe_holder(leak.holder, names))
    elif not leak.line.is_workspace:
        sentences += describe_no_holder(leak.no_holder, summary.final_scan)
    if _has_growing_graph_pools(leak.device, summary):
        sentences.append(
            f"These are live blocks only. {leak.device} fills faster, because the pools of CUDA graphs grow, too: see"
            " the finding on fragmentation."
        )
    elif leak.bytes_per_unit >= 1:
        sentences.append(_describe_forecast(leak, summary, names))
    if not is_live_at_end:
        last_unit = "the last allocation" if leak.unit == "second" else f"the last {leak.unit}"
        sentences.append(f"It was freed after {last_unit}; it grew while the program ran.")
    sentences.append(cure(leak, names))
    if summary.integrity.has_gaps:
        sentences.append("Events are missing from the trace: some of these blocks may have been freed.")
    return sentences


def _list_brief(leak: Leak, summary: Summary, names: SiteNames) -> tuple[str, ...]:
    if leak.holder is not None:
        holder = describe_holder(leak.holder, names)
    else:
        holder = " ".join(describe_no_holder(leak.no_holder, summary.final_scan))
    forecast = ""
    if leak.bytes_per_unit >= 1:
        forecast = f"At this rate {describe_full(leak, summary, names) or _describe_growth_rate(leak)}. "
    if leak.never_died:
        basis = f"none of {units.counted(leak.reached, 'block')} was ever freed"
    else:
        freed = f"only {units.number(leak.died)} freed later" if leak.died else "none was freed later"
        basis = f"of {units.counted(leak.reached, 'block')} that grew old, {freed}"
    if leak.kind != SURVIVORS:
        basis = "it grew all through the run"
    return cure(leak, names), f"{forecast}{_describe_confidence(leak)}; {basis}.", holder


def _has_growing_graph_pools(device: str, summary: Summary) -> bool:
    return any(
        "graphs_until_full" in inefficiency.figures
        for summarized in summary.devices
        if summarized.device == device
        for inefficiency in summarized.inefficiencies
    )


def _describe_confidence(leak: Leak) -> str:
    return f"{confidence_word(leak.confidence).capitalize()} ({units.share(leak.confidence, 1)})"


def _describe_survivors(leak: Leak, when: str) -> list[str]:
    survivors = f"{units.size(leak.allocated_bytes)} in {units.counted(leak.blocks, 'block')}, still live {when}"
    if leak.unit == "second":
        evidence = f"Blocks were left behind all through the run: {survivors}."
    else:
        evidence = (
            f"{units.number(leak.units_with_survivors)} of {units.counted(leak.units_judged, leak.unit)} left blocks "
            f"behind{_describe_onset(leak)}: {survivors}."
        )
    age = units.duration(leak.age) if leak.unit == "second" else units.counted(round(leak.age), leak.unit)
    freed = "none was freed later" if leak.died == 0 else f"only {units.number(leak.died)} freed later"
    if leak.never_died:
        basis = (
            "no block of this line was ever freed, so it may also be a buffer of more than "
            f"{units.number(leak.reached)} blocks that is not full yet"
        )
    else:
        basis = f"of the {units.number(leak.reached)} blocks that reached the age of {age}, {freed}"
    return [evidence, f"{_describe_confidence(leak)}: {basis}."]


def _describe_onset(leak: Leak) -> str:
    """Return " from step 40 on" for a leak that did not begin with the run, else ""."""
    return f" from {leak.unit} {round(leak.onset):,} on" if leak.onset > leak.units_judged / 4 else ""


def _describe_backlog(leak: Leak, when: str) -> list[str]:
    backlog = f"{units.number(leak.blocks)} with {units.size(leak.allocated_bytes)} {when}"
    return [
        f"Frees lag behind allocations at this line: {units.number(leak.blocks_at_onset)} blocks were live early on, "
        f"{backlog}.",
        f"{_describe_confidence(leak)}: more are allocated than freed, all through the run.",
    ]


def _describe_growing(leak: Leak, when: str) -> list[str]:
    return [
        _describe_buffers(leak, when),
        f"{_describe_confidence(leak)}: {'it' if leak.blocks == 1 else 'they'} grew in {leak.units_with_survivors} of "
        f"{leak.units_judged} parts of the run.",
    ]


def _describe_buffers(leak: Leak, when: str) -> str:
    if leak.blocks == 1:
        replaced = "This buffer is replaced again and again by a larger one, never by a smaller one"
    else:
        replaced = f"These {units.number(leak.blocks)} buffers are replaced again and again by larger ones"
    return f"{replaced}: {units.size(leak.allocated_bytes)} {when}."


def _describe_forecast(leak: Leak, summary: Summary, names: SiteNames) -> str:
    growth, full = _describe_growth_rate(leak), describe_full(leak, summary, names)
    return f"At this rate {full}; {growth}." if full else f"At this rate {growth}."


def _describe_growth_rate(leak: Leak) -> str:
    units_needed = _FORECAST_GROWTH / leak.bytes_per_unit
    time_left = units.duration(units_needed * leak.seconds_per_unit)
    if leak.unit == "second":
        return f"1 GiB more takes {time_left}"
    return f"1 GiB more takes {units.counted(max(round(units_needed), 1), leak.unit)} (about {time_left})"


def _describe_no_leak(devices: Sequence[DeviceSummary], summary: Summary, names: SiteNames) -> Finding:
    where = ", ".join(device.device for device in devices)
    basis = describe_basis(devices[0].leaks, names)
    if not summary.integrity.is_complete:
        return Finding("not_judged", f"No leak in what could be read of {where}: {basis}", where, 0, None, None, 0, ())
    subject = "Only minor leaks" if any(device.leaks.leaks for device in devices) else "No leak"
    return Finding("no_leak", f"{subject} found on {where}: {basis}", where, 0, None, None, 0, ())


def _describe_unjudged(devices: Sequence[DeviceSummary]) -> Finding:
    where = ", ".join(device.device for device in devices)
    verdict = devices[0].leaks
    if verdict.unit == "step":
        reason = f"{units.counted(verdict.units, 'step')}, at least {LEAST_STEPS} are needed"
    elif verdict.loop is not None:
        reason = units.counted(verdict.units, "iteration")
    elif verdict.is_one_pass:
        reason = (
            "one pass is not a loop, and the trace has no steps and shows no loop; call alloctrace.step() at the end "
            "of each iteration"
        )
    else:
        reason = f"no steps in the trace, and fewer than {LEAST_ALLOCATIONS} allocations"
    return Finding("not_judged", f"Too short to judge leaks on {where}: {reason}", where, 0, None, None, 0, ())


def write_leak(leak: Leak, stack: Sequence[str], indent: int, screen: Screen, names: SiteNames) -> None:
    """Write the chart, the callers and the allocating lines. For a leak of one line, `stack` replaces the callers."""
    _write_live(leak, indent, screen)
    if stack and len(leak.sites) == 1:
        screen.stack(stack, indent)
    elif leak.callers:
        screen.text("Called from:", indent)
        for frame in leak.callers[:_MAX_CALLERS]:
            screen.text(names.site(frame), indent + 2)
            source = names.source(frame)
            if source:
                screen.source(source, indent + 4)
    _write_sites(leak, indent, screen, names)


def _write_live(leak: Leak, indent: int, screen: Screen) -> None:
    """Write a chart of the live bytes. Its scale begins at zero: growth must not be exaggerated."""
    if len(leak.allocated_bytes_over_run) < 2:
        return
    chart = units.sparkline(
        leak.allocated_bytes_over_run, max(min(screen.width - indent - 30, 60), 10), plain=screen.plain, minimum=0
    )
    arrow = "to" if screen.plain else "→"
    first_size, last_size = units.size(leak.allocated_bytes_over_run[0]), units.size(leak.allocated_bytes_over_run[-1])
    screen.text(Text.assemble("live: ", (chart, "green"), f"  {first_size} {arrow} {last_size}"), indent)


def _write_sites(leak: Leak, indent: int, screen: Screen, names: SiteNames) -> None:
    if len(leak.sites) == 1:
        return
    others = [_has_other_holder(site, leak) for site in leak.sites]
    reference = ", and held by one reference, probably" if leak.holder is None and None in others else ""
    if leak.holder is not None and not any(other is not False for other in others):
        reference = ", and held by the same object"
    screen.text(f"Allocated at these lines{reference}:", indent)
    for site, is_other in zip(leak.sites[:_MAX_SITES], others, strict=False):
        rate, frames = units.rate(site.bytes_per_unit, leak.unit), names.stack(site.stack_id)
        screen.entry(rate, names.site(site.site), names.source(site.site), indent, 20, frames=frames)
        if is_other and site.holder is not None:
            screen.text(describe_referrers(site.holder, names), indent + 22)
    omitted = leak.sites[_MAX_SITES:]
    if omitted:
        rate = units.rate(sum(site.bytes_per_unit for site in omitted), leak.unit)
        screen.text(f"and {units.counted(len(omitted), 'more line')}, {rate}", indent + 2, style="dim")


def _has_other_holder(site: LeakingSite, leak: Leak) -> bool | None:
    """Return whether a line's blocks have another holder than the leak; None if a holder is unknown or several are."""
    holders = leak.holder, site.holder
    if any(holder is None or len(holder.names) > 1 for holder in holders):
        return None
    leak_identity, site_identity = (holder.identity for holder in holders if holder is not None)
    return leak_identity != site_identity


def leak_data(leak: Leak) -> dict[str, Any]:
    """Return the fields of a leak finding that other findings do not have, as plain values."""
    return {
        "leak_kind": leak.kind,
        "unit": leak.unit,
        "bytes_per_unit": round(leak.bytes_per_unit),
        "blocks": leak.blocks,
        "allocated_bytes_at_end": leak.allocated_bytes_at_end,
        "age": leak.age,
        "reached": leak.reached,
        "died": leak.died,
        "never_died": leak.never_died,
        "onset": leak.onset,
        "blocks_at_onset": leak.blocks_at_onset,
        "units_with_survivors": leak.units_with_survivors,
        "units_judged": leak.units_judged,
        "oldest_age": leak.oldest_age,
        "forecast_seconds": leak.forecast_seconds,
        "allocated_bytes_over_run": list(leak.allocated_bytes_over_run),
        "path": [dataclasses.asdict(frame) for frame in leak.path],
        "path_share": round(leak.path_share, 4),
        "holder": None if leak.holder is None else dataclasses.asdict(leak.holder),
        "no_holder": None if leak.no_holder is None else leak.no_holder.value,
        "sites": [
            {
                "site": dataclasses.asdict(site.site),
                "stack_id": site.stack_id,
                "bytes_per_unit": round(site.bytes_per_unit),
                "allocated_bytes": site.allocated_bytes,
                "blocks": site.blocks,
            }
            for site in leak.sites
        ],
    }
