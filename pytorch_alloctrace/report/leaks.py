"""Leaks in words: the findings on them, how they are laid out, and their JSON form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..analysis.leaks.clock import LEAST_ALLOCATIONS, LEAST_STEPS
from ..analysis.leaks.leak import BACKLOG, CERTAIN, GROWING, LIKELY, Holder, Leak, LeakVerdict
from ..analysis.limit import Exceeded, GrowthLimit
from ..analysis.summary import DeviceSummary, Summary
from . import units
from .finding import Finding
from .screen import Screen
from .site_names import SiteNames

_CONFIDENCE = ((CERTAIN, "almost certain"), (LIKELY, "likely"), (0.0, "possible"))
"""The least confidence for each word."""
_FORECAST_BYTES = 1 << 30
_SITES = 5
"""Most lines of one leak that are shown."""
_CALLERS = 3
"""Most callers that are shown."""


def leak_findings(summary: Summary, names: SiteNames | None = None) -> tuple[Finding, ...]:
    """The findings on leaks, the most pressing first: the leaks that matter, or that there are none; what could not be
    decided or judged; last the minor leaks. None only if nothing was allocated. names: default those of `SiteNames`."""
    names = names or SiteNames(summary.program.working_directory)
    leaks = sorted(
        (leak for device in summary.devices for leak in device.leaks.leaks), key=lambda one: one.weight, reverse=True
    )
    found = [_leak(leak, summary, names) for leak in leaks if not leak.minor]
    judged = [device for device in summary.devices if device.leaks.judged]
    inconclusive = [device for device in judged if not device.leaks.decided]
    unjudged = [device for device in summary.devices if not device.leaks.judged and not summary.is_small(device)]
    found += [_undecided(device, summary, names) for device in inconclusive]
    if not found and judged:
        found.append(_no_leak(judged, summary, names))
    if unjudged:
        found.append(_not_judged(unjudged))
    return (*found, *(_minor_leak(leak, summary, names) for leak in leaks if leak.minor))


def exceeded_sentence(one: Exceeded, limit: GrowthLimit) -> str:
    """That the leaks of a device are above a limit."""
    amount = f"{units.size(one.bytes)}, {units.rate(one.rate, one.unit)}"
    return f"{one.device} leaks {amount}: more than {limit.text} (--fail-above)"


def confidence_word(confidence: float) -> str:
    """almost certain (from 90 %), likely (from 70 %) or possible."""
    return next(word for least, word in _CONFIDENCE if confidence >= least)


def _leak(leak: Leak, summary: Summary, names: SiteNames) -> Finding:
    device = f" on {leak.device}" if len(summary.devices) > 1 else ""
    return Finding(
        kind="growth" if leak.kind == BACKLOG else "leak",
        title=f"{names.site(leak.line)}: {units.rate(leak.bytes_per_unit, leak.unit)}{device}",
        device=leak.device,
        bytes=leak.allocated_bytes,
        confidence=leak.confidence,
        site=leak.line,
        stack_id=leak.sites[0].stack_id,
        sentences=tuple(_sentences(leak, summary, names)),
        leak=leak,
    )


def _minor_leak(leak: Leak, summary: Summary, names: SiteNames) -> Finding:
    device = f" on {leak.device}" if len(summary.devices) > 1 else ""
    title = f"{names.site(leak.line)} keeps {units.rate(leak.bytes_per_unit, leak.unit).lstrip('+')}{device}"
    cost = f"{units.size(leak.allocated_bytes)} in this run"
    if leak.forecast_seconds is not None:
        cost += f"; {leak.device} would be full in {units.duration(leak.forecast_seconds)}"
    return Finding(
        kind="minor_leak",
        title=f"{title}: a leak, but it costs next to nothing ({cost})",
        device=leak.device,
        bytes=leak.allocated_bytes,
        confidence=leak.confidence,
        site=leak.line,
        stack_id=leak.sites[0].stack_id,
        sentences=(),
        leak=leak,
    )


def _sentences(leak: Leak, summary: Summary, names: SiteNames) -> list[str]:
    kept_at_end = leak.allocated_bytes_at_end >= leak.allocated_bytes // 2
    when = "at the end" if kept_at_end else f"{_judged_when(leak)}"
    worded = {GROWING: _growing_sentences, BACKLOG: _backlog_sentences}.get(leak.kind, _surviving_sentences)
    sentences = worded(leak, when)
    if leak.holder is not None:
        sentences.append(_holding(leak.holder, names))
    elif summary.last_look_was_cut and not leak.line.is_workspace:
        sentences.append(
            "What holds them was not found: the last look could not see all objects of the program, in which "
            "alloctrace.holders(tensor) looks for longer."
        )
    if leak.bytes_per_unit >= 1:
        sentences.append(_forecast(leak))
    if not kept_at_end:
        last = "the last allocation" if leak.unit == "second" else f"the last {leak.unit}"
        sentences.append(f"It was freed after {last}, when whatever held it went away: while the program ran, it grew.")
    if leak.line.is_workspace:
        sentences.append(
            "cuBLAS keeps one for each thread and stream that multiplies, until the process ends: use the same threads "
            "and streams again."
        )
    if summary.integrity.has_gaps:
        sentences.append("Events are missing from the trace: some of these blocks may have been freed.")
    return sentences


def _holding(holder: Holder, names: SiteNames) -> str:
    """What holds the blocks. It was looked at in mid-run, so its size is not the last one."""
    when = "" if holder.step is None else f" (as it was in step {units.number(holder.step)})"
    referrers = [names.referrer(name) for name in holder.names]
    if len(referrers) == 1:
        return f"Held by {referrers[0]}{when}."
    return f"Held by several{when}: {'; '.join(referrers)}."


def _judged_when(leak: Leak) -> str:
    return {"step": "when the last step ended", "iteration": "in the last iteration"}.get(
        leak.unit, "at the last allocation"
    )


def _certain(leak: Leak) -> str:
    return f"{confidence_word(leak.confidence).capitalize()} ({units.share(leak.confidence, 1)})"


def _surviving_sentences(leak: Leak, when: str) -> list[str]:
    kept = f"{units.size(leak.allocated_bytes)} in {units.counted(leak.blocks, 'block')}, still live {when}"
    if leak.unit == "second":
        left = f"Blocks were left behind all through the run: {kept}."
    else:
        left = (
            f"{units.number(leak.units_with_survivors)} of {units.counted(leak.units_judged, leak.unit)} left blocks "
            f"behind{_since(leak)}: {kept}."
        )
    age = units.duration(leak.age) if leak.unit == "second" else units.counted(round(leak.age), leak.unit)
    died = "none has died since" if leak.died == 0 else f"only {units.number(leak.died)} died later"
    if leak.never_died:
        basis = (
            "no block of this line was ever freed, so it may also be a buffer of more than "
            f"{units.number(leak.reached)} blocks that is not full yet"
        )
    else:
        basis = f"of the {units.number(leak.reached)} blocks that reached the age of {age}, {died}"
    return [left, f"{_certain(leak)}: {basis}."]


def _since(leak: Leak) -> str:
    """From when on, if it did not begin with the run."""
    return f" from {leak.unit} {round(leak.onset):,} on" if leak.onset > leak.units_judged / 4 else ""


def _backlog_sentences(leak: Leak, when: str) -> list[str]:
    now = f"{units.number(leak.blocks)} with {units.size(leak.allocated_bytes)} {when}"
    return [
        "Blocks of this line are freed in time, but ever more are alive at once: "
        f"{units.number(leak.blocks_at_onset)} early on, {now}.",
        f"{_certain(leak)}: more are allocated than freed, all through the run.",
    ]


def _growing_sentences(leak: Leak, when: str) -> list[str]:
    return [
        _growing_sentence(leak, when),
        f"{_certain(leak)}: {'it' if leak.blocks == 1 else 'they'} grew in {leak.units_with_survivors} of "
        f"{leak.units_judged} parts of the run.",
    ]


def _growing_sentence(leak: Leak, when: str) -> str:
    if leak.blocks == 1:
        replaced = "This buffer is replaced again and again by a larger one, never by a smaller one"
    else:
        replaced = f"These {units.number(leak.blocks)} buffers are replaced again and again by larger ones"
    return f"{replaced}: {units.size(leak.allocated_bytes)} {when}."


def _forecast(leak: Leak) -> str:
    needed = _FORECAST_BYTES / leak.bytes_per_unit
    soon = units.duration(needed * leak.seconds_per_unit)
    period = soon if leak.unit == "second" else f"{units.counted(max(round(needed), 1), leak.unit)} (about {soon})"
    # Other programs take their share of the machine's memory, which is what "cpu" has.
    if leak.forecast_seconds is None or leak.device == "cpu":
        return f"At this rate it grows by 1 GiB in {period}."
    return (
        f"At this rate it grows by 1 GiB in {period}, and {leak.device} is full in about "
        f"{units.duration(leak.forecast_seconds)}."
    )


def _counted_in(verdict: LeakVerdict, names: SiteNames) -> str:
    """What the judgement rests on: so many steps, or what stood for them."""
    if verdict.unit == "step":
        return f"{units.counted(verdict.units, 'step')} judged"
    if verdict.loop is not None:
        where = f"{verdict.loop.function} ({names.file(verdict.loop.filename)})"
        return f"{units.counted(verdict.units, 'iteration')} of {where} judged, since the trace has no steps"
    return "no steps in the trace, and no loop to be seen: judged by allocations"


def _no_leak(devices: Sequence[DeviceSummary], summary: Summary, names: SiteNames) -> Finding:
    where = ", ".join(device.device for device in devices)
    basis = _counted_in(devices[0].leaks, names)
    if not summary.integrity.whole:
        return Finding("not_judged", f"No leak in what could be read of {where}: {basis}", where, 0, None, None, 0, ())
    weight = "" if not any(device.leaks.leaks for device in devices) else " of any weight"
    return Finding("no_leak", f"No leak{weight} found on {where}: {basis}", where, 0, None, None, 0, ())


def _undecided(device: DeviceSummary, summary: Summary, names: SiteNames) -> Finding:
    verdict = device.leaks
    first = verdict.unexplained[0]
    total, blocks = (sum(getattr(one, name) for one in verdict.unexplained) for name in ("allocated_bytes", "blocks"))
    more = len(verdict.unexplained) - 1
    others = f", and {units.counted(more, 'more line')}" if more else ""
    asked = "" if verdict.unit == "step" else ", or alloctrace.step() at the end of each iteration,"
    return Finding(
        kind="inconclusive",
        title=f"Not decided whether {device.device} leaks: {names.site(first.site)}{others} held on to "
        f"{units.size(total)} more, too irregularly or too late to call it a leak",
        device=device.device,
        bytes=total,
        confidence=None,
        site=first.site,
        stack_id=first.stack_id,
        sentences=(
            f"Still live, though no longer young: {units.counted(blocks, 'block')} ({_counted_in(verdict, names)}).",
            f"A longer run{asked} would decide it; --since judges a part of it.",
        ),
    )


def _not_judged(devices: Sequence[DeviceSummary]) -> Finding:
    where = ", ".join(device.device for device in devices)
    verdict = devices[0].leaks
    if verdict.unit == "step":
        reason = f"{units.counted(verdict.units, 'step')}, at least {LEAST_STEPS} are needed"
    elif verdict.loop is not None:
        reason = units.counted(verdict.units, "iteration")
    else:
        reason = f"no steps in the trace, and fewer than {LEAST_ALLOCATIONS} allocations"
    return Finding("not_judged", f"Too short to judge leaks on {where}: {reason}", where, 0, None, None, 0, ())


def write_leak(leak: Leak, stack: Sequence[str], indent: int, screen: Screen, names: SiteNames) -> None:
    """What is shown below the sentences: the chart, who called, and the lines that allocate. stack: the whole one, if
    it is to be shown; a leak of several lines has one for each line."""
    _live(leak, indent, screen)
    if stack and len(leak.sites) == 1:
        screen.stack(stack, indent)
    elif leak.callers:
        screen.text("Called from:", indent)
        for frame in leak.callers[:_CALLERS]:
            screen.text(names.site(frame), indent + 2)
            quoted = names.source(frame)
            if quoted:
                screen.source(quoted, indent + 4)
    _sites(leak, indent, screen, names)


def _live(leak: Leak, indent: int, screen: Screen) -> None:
    """A chart of what the lines of a leak held over the run, from zero, so that it shows how much of it is growth."""
    if len(leak.allocated_bytes_over_run) < 2:
        return
    chart = units.sparkline(
        leak.allocated_bytes_over_run, max(min(screen.width - indent - 30, 60), 10), plain=screen.plain, least=0
    )
    arrow = "to" if screen.plain else "→"
    first, last = units.size(leak.allocated_bytes_over_run[0]), units.size(leak.allocated_bytes_over_run[-1])
    screen.text(Text.assemble("live: ", (chart, "green"), f"  {first} {arrow} {last}"), indent)


def _sites(leak: Leak, indent: int, screen: Screen, names: SiteNames) -> None:
    """Where the blocks of a leak of several lines are allocated, by bytes."""
    if len(leak.sites) == 1:
        return
    screen.text("Allocated at these lines, in the same steps, and probably kept by one reference:", indent)
    for site in leak.sites[:_SITES]:
        rate, frames = units.rate(site.bytes_per_unit, leak.unit), names.stack(site.stack_id)
        screen.entry(rate, names.site(site.site), names.source(site.site), indent, 20, frames=frames)
    more = leak.sites[_SITES:]
    if more:
        rate = units.rate(sum(site.bytes_per_unit for site in more), leak.unit)
        screen.text(f"and {units.counted(len(more), 'more line')}, {rate}", indent + 2, style="dim")


def explanation(leak: Leak) -> str:
    """What to look for at the line."""
    if leak.kind == BACKLOG:
        return "Blocks of this line are made faster than they are freed: slow down what makes them, or cap the queue."
    if leak.kind == GROWING:
        return "This line makes the larger buffer from the last one: clear it periodically, or cap its size."
    keepers = "a list, an attribute, a closure, an autograd graph"
    allocates = "allocates the blocks" if leak.line == leak.sites[0].site else "calls what allocates the blocks"
    if leak.holder is not None:
        return f"This line {allocates}: clear the holder periodically, or cap its size."
    return f"This line {allocates}; a reference keeps them: {keepers}."


def leak_data(leak: Leak) -> dict[str, Any]:
    """As plain values: what a finding on a leak has besides what all have."""
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
