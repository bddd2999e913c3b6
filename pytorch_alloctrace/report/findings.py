"""Findings: what an analysis found, in plain words.

A kind that comes later adds a function here, and all faces show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..analysis.free_memory.conditions import Condition
from ..analysis.free_memory.oom import OutOfMemory
from ..analysis.leaks.leak import CERTAIN, GROWING, LIKELY, Leak
from ..analysis.summary import DeviceSummary, Summary
from ..reading.site_tables import Site
from ..reading.sites import Frame
from . import units
from .conditions import condition_sentences, condition_title
from .oom import sentences
from .places import PlaceNames

_CONFIDENCE = ((CERTAIN, "almost certain"), (LIKELY, "likely"), (0.0, "possible"))
"""From which confidence on which word is used."""
_FORECAST_BYTES = 1 << 30
_SMALL = 1000
"""A leak is called small when so many of it are less than the peak."""


@dataclass(frozen=True)
class Finding:
    """One statement on the trace. Bytes are requested bytes."""

    kind: str
    """"oom", "leak", "no_leak", "not_judged", or one of `analysis.conditions`."""
    title: str
    """One line without a full stop."""
    device: str
    """Torch's spelling; several, separated by ", ", where it is about all of them."""
    bytes: int
    """What it is about; 0 where nothing is wrong."""
    confidence: float | None
    site: Site | None
    """The line to look at."""
    stack_id: int
    """Of the stacks behind it the one with the most bytes."""
    sentences: tuple[str, ...]
    path_title: str = ""
    """What `path` is, as a beginning of a sentence."""
    path: tuple[Frame, ...] = ()
    """How the program gets to the site, innermost frame first."""
    leak: Leak | None = None


def findings(summary: Summary) -> tuple[Finding, ...]:
    """The findings on leaks, the most pressing first. There is always one on leaks, be it that there are none."""
    names = PlaceNames(summary.program.working_directory)
    leaks = sorted(
        (leak for device in summary.devices for leak in device.leaks.leaks), key=lambda leak: leak.weight, reverse=True
    )
    found = [_leak(leak, summary, names) for leak in leaks]
    if found:
        return tuple(found)
    judged = [device for device in summary.devices if device.leaks.judged]
    if judged:
        return (_no_leak(judged, summary),)
    return (_not_judged(summary.devices),) if summary.devices else ()


def diagnosis(summary: Summary) -> tuple[Finding, ...]:
    """All that is the matter, the most pressing first: requests that ran out of memory, leaks (or that there are none),
    then what else is the matter, of each kind the most bytes first."""
    names = PlaceNames(summary.program.working_directory)
    refused = [device.refused for device in summary.devices if device.refused is not None]
    conditions = [condition for device in summary.devices for condition in device.conditions]
    return (
        *(_refused(one, names) for one in sorted(refused, key=lambda one: -one.requested)),
        *findings(summary),
        *(_condition(one, names) for one in sorted(conditions, key=lambda one: -one.bytes)),
    )


def _refused(found: OutOfMemory, names: PlaceNames) -> Finding:
    when = f" in step {found.step}" if found.step is not None else ""
    return Finding(
        kind="oom",
        title=f"{names.place(found.site)}: {found.device} refused {units.size(found.requested)}{when}: {found.verdict}",
        device=found.device,
        bytes=found.requested,
        confidence=None,
        site=found.site,
        stack_id=found.refusal.stack_id,
        sentences=sentences(found, names),
    )


def _condition(condition: Condition, names: PlaceNames) -> Finding:
    return Finding(
        kind=condition.kind,
        title=condition_title(condition),
        device=condition.device,
        bytes=condition.bytes,
        confidence=None,
        site=condition.site,
        stack_id=condition.stack_id,
        sentences=condition_sentences(condition, names),
    )


def confidence_word(confidence: float) -> str:
    """The word for it: almost certain from 90 % on, likely from 70 % on, else possible."""
    return next(word for least, word in _CONFIDENCE if confidence >= least)


def _leak(leak: Leak, summary: Summary, names: PlaceNames) -> Finding:
    first = leak.sites[0]
    device = f" on {leak.device}" if len(summary.devices) > 1 else ""
    return Finding(
        kind="leak",
        title=f"{names.place(leak.line)}: {units.rate(leak.rate, leak.unit)}{device}",
        device=leak.device,
        bytes=leak.bytes,
        confidence=leak.confidence,
        site=leak.line,
        stack_id=first.stack_id,
        sentences=tuple(_leak_sentences(leak, summary)),
        path_title="Called from",
        path=leak.callers,
        leak=leak,
    )


def _leak_sentences(leak: Leak, summary: Summary) -> list[str]:
    kept_at_end = leak.bytes_at_end >= leak.bytes // 2
    when = "at the end" if kept_at_end else "when the last step ended"
    growing = leak.kind == GROWING
    sentences = [_growing_sentence(leak, when) if growing else _surviving_sentence(leak, when)]
    happened = "it grew in" if growing else "blocks of"
    survived = "of the run" if growing else "of the run survived"
    sentences.append(
        f"{confidence_word(leak.confidence).capitalize()} ({units.share(leak.confidence, 1)}): {happened} "
        f"{leak.windows_with_survivors} of {leak.windows_judged} stretches {survived}."
    )
    peak = max((device.peak.bytes for device in summary.devices if device.device == leak.device), default=0)
    if leak.bytes * _SMALL < peak:
        sentences.append("Small: in the whole run it came to less than a thousandth of the peak.")
    elif leak.rate >= 1:
        needed = _FORECAST_BYTES / leak.rate
        soon = units.duration(needed * leak.seconds_per_unit)
        steps = f"{units.counted(max(round(needed), 1), 'step')}, about {soon}" if leak.unit == "step" else soon
        # On "cpu" it is the machine's memory, of which others take their part.
        full = leak.forecast is not None and leak.device != "cpu"
        full_after = f"; {leak.device} is full after about {units.duration(leak.forecast or 0)}" if full else ""
        sentences.append(f"At this rate 1 GiB more after {steps}{full_after}.")
    if not kept_at_end:
        sentences.append("It was freed after the last step: what held it went away then.")
    integrity = summary.integrity
    if integrity.lost or integrity.missing_events or integrity.corrupt_blocks:
        sentences.append("Events are missing from the trace: some of these blocks may have been freed.")
    return sentences


def _surviving_sentence(leak: Leak, when: str) -> str:
    period = "steps" if leak.unit == "step" else "stretches of time"
    return (
        f"{units.size(leak.bytes)} in {units.counted(leak.blocks, 'block')} still alive {when}, "
        f"from {units.number(leak.units_with_survivors)} of the {units.number(leak.units_judged)} {period} judged."
    )


def _growing_sentence(leak: Leak, when: str) -> str:
    buffer = "This buffer is" if leak.blocks == 1 else f"These {units.number(leak.blocks)} buffers are"
    larger = "a larger one" if leak.blocks == 1 else "larger ones"
    return f"{buffer} replaced by {larger} again and again, never by a smaller: {units.size(leak.bytes)} {when}."


def _no_leak(devices: Sequence[DeviceSummary], summary: Summary) -> Finding:
    where = ", ".join(device.device for device in devices)
    verdict = devices[0].leaks
    if verdict.unit == "step":
        basis = f"no line kept blocks from nearly every one of the {units.counted(verdict.units, 'step')} judged"
    else:
        basis = f"no line kept blocks throughout the run ({units.duration(summary.seconds)}, no steps in the trace)"
    return Finding("no_leak", f"No leak found on {where}: {basis}", where, 0, None, None, 0, ())


def _not_judged(devices: Sequence[DeviceSummary]) -> Finding:
    where = ", ".join(device.device for device in devices)
    verdict = devices[0].leaks
    if verdict.unit == "step":
        after = f"{units.counted(verdict.units, 'step')} after the warm-up"
        title = f"Too short to judge leaks: {after}, at least 4 are needed"
    else:
        title = "Too short to judge leaks: no steps in the trace, and memory came and went in too few moments"
    return Finding("not_judged", title, where, 0, None, None, 0, ())
