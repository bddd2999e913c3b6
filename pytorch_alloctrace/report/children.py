"""Child processes of a program, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from ..analysis.child_runs import MAX_BYTES, ChildRun, ChildRuns
from ..analysis.summary import Summary
from ..command import path_argument, spelled
from . import units
from .finding import LABELS, Finding
from .leaks import leak_findings
from .screen import Screen
from .site_names import SiteNames

LABEL = "CHILD"
_MAX_RUNS = 8
_MAX_COMMANDS = 2
_MAX_COMMAND_LENGTH = 60
_SPAWNED = "multiprocessing.spawn"
_LEAKS = ("leak", "growth")


def write_children(children: ChildRuns[Summary], screen: Screen, names: SiteNames) -> None:
    """Write what recorded children did, those that leak first, and which were not judged or not recorded."""
    sentences = describe_children(children, names)
    if sentences:
        screen.blank()
    for sentence in sentences:
        screen.text(Text.assemble((LABEL, "bold"), f"  {sentence}"), hanging=7)
    if children.unrecorded:
        screen.blank()
        screen.text(_describe_unrecorded(children), style="dim")


def children_line(children: ChildRuns[Summary], names: SiteNames) -> str:
    """Return on one line what a recorded child did, one with a leak if there is one, or which were not recorded."""
    sentences = describe_children(children, names)
    if not sentences:
        return _describe_unrecorded(children) if children.unrecorded else ""
    return f"{LABEL}  {sentences[0]}{f'; {len(sentences) - 1:,} more (--verbose)' if len(sentences) > 1 else ''}"


def _describe_unrecorded(children: ChildRuns[Summary]) -> str:
    shown = list(dict.fromkeys(_shorten(command) for command in children.unrecorded))
    commands = "; ".join(shown[:_MAX_COMMANDS])
    more = "; ..." if len(shown) > _MAX_COMMANDS else ""
    count = children.unrecorded_count
    ran = "1 child process ran and was" if count == 1 else f"{units.number(count)} child processes ran and were"
    return f"{ran} not recorded: alloctrace run --follow records them ({commands}{more})."


def describe_children(children: ChildRuns[Summary], names: SiteNames) -> list[str]:
    """Return a sentence on each recorded child, those that leak first, and one on those that were not judged."""
    runs = sorted(children.runs, key=_rank)
    sentences = [_describe_run(run, names) for run in runs[:_MAX_RUNS]]
    omitted = runs[_MAX_RUNS:]
    if omitted:
        worst = ("some leak", "not all could be judged", "no leak found")[_rank(omitted[0])]
        sentences.append(f"{units.counted(len(omitted), 'more trace')}: {worst}")
    if children.unjudged:
        traces, trace = units.counted(len(children.unjudged), "trace"), children.unjudged[0].trace
        verb, which = ("was", "it") if len(children.unjudged) == 1 else ("were", "the largest")
        sentences.append(
            f"{traces} {verb} not judged (limit: {units.size(MAX_BYTES)} for the traces of all children). To judge "
            f"{which}: {spelled()} leaks {path_argument(trace)}"
        )
    return sentences


def leaking_child(children: ChildRuns[Summary] | None, names: SiteNames) -> str | None:
    """Return the label and the line of the largest child that leaks, or None."""
    leaking = [run for run in children.runs if _rank(run) == 0] if children is not None else []
    if not leaking:
        return None
    finding = _first_finding(leaking[0])
    assert finding is not None
    more = f" (and leaks in {len(leaking) - 1} more)" if len(leaking) > 1 else ""
    return f"{LABELS[finding.kind]}  child process {leaking[0].process}: {finding.title}{more}"


def _first_finding(run: ChildRun[Summary]) -> Finding | None:
    return None if run.summary is None else next(iter(leak_findings(run.summary)), None)


def _rank(run: ChildRun[Summary]) -> int:
    """Return 0 for a child that leaks, 1 for one whose leaks are unknown, else 2."""
    finding = _first_finding(run)
    if finding is not None and finding.kind in _LEAKS:
        return 0
    return 1 if run.summary is None or (finding is not None and not run.summary.leaks_are_known) else 2


def _describe_run(run: ChildRun[Summary], names: SiteNames) -> str:
    process, command = f"process {run.process}", _shorten(run.command)
    if run.summary is None:
        return f"{process}: its trace cannot be read ({names.file(run.trace)}; {command})"
    allocating = [device for device in run.summary.devices if device.allocations]
    peaks = [f"{units.size(device.peak.allocated_bytes)} on {device.device}" for device in allocating]
    first = _first_finding(run)
    verdict = "nothing allocated" if first is None else first.title
    if first is not None and first.kind in _LEAKS:
        verdict = f"{LABELS[first.kind]} {verdict}"
    return f"{process}: peak {' and '.join(peaks) or '0 B'}, {verdict} ({names.file(run.trace)}; {command})"


def _shorten(command: str) -> str:
    """Return a command without the folder of its program, cut to `_MAX_COMMAND_LENGTH`."""
    if _SPAWNED in command:
        return "started by multiprocessing"
    program, _, arguments = command.partition(" ")
    text = f"{program.rpartition('/')[2]} {arguments}".rstrip()
    return text if len(text) <= _MAX_COMMAND_LENGTH else f"{text[: _MAX_COMMAND_LENGTH - 3]}..."


def children_data(children: ChildRuns[Summary]) -> dict[str, Any]:
    return {
        "recorded": [
            {
                "process": run.process,
                "command": run.command,
                "trace": run.trace,
                "peaks": [
                    {"device": device.device, "bytes": device.peak.allocated_bytes}
                    for device in (run.summary.devices if run.summary is not None else ())
                ],
                "leaks": [
                    finding.title
                    for finding in (leak_findings(run.summary) if run.summary is not None else ())
                    if finding.kind in _LEAKS
                ],
            }
            for run in children.runs
        ],
        "more_recorded": len(children.unjudged),
        "not_recorded": list(children.unrecorded),
    }
