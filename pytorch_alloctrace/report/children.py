"""Child processes of a program, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from ..analysis.child_runs import ChildRun, ChildRuns
from ..analysis.summary import LeaksAnswer, Summary
from . import units
from .finding import LABELS
from .leaks import leak_findings
from .screen import Screen
from .site_names import SiteNames

_MAX_COMMANDS = 2
_MAX_COMMAND_LENGTH = 60
_SPAWNED = "multiprocessing.spawn"


def write_children(children: ChildRuns[Summary], screen: Screen, names: SiteNames) -> None:
    """Write what recorded children did, and that others were not recorded."""
    if children.runs:
        screen.blank()
    for run in children.runs:
        screen.text(Text.assemble(("CHILD", "bold"), f"  {_describe_run(run, names)}"), hanging=7)
    if children.more:
        screen.text(f"and {units.counted(children.more, 'more trace')} of children", 2, style="dim")
    if children.unrecorded:
        screen.blank()
        screen.text(_describe_unrecorded(children), style="dim")


def children_line(children: ChildRuns[Summary], names: SiteNames) -> str:
    """Return on one line what a recorded child did, one with a leak if there is one, or which were not recorded."""
    if not children.runs:
        return _describe_unrecorded(children) if children.unrecorded else ""
    run = max(children.runs, key=lambda run: run.summary is not None and run.summary.leaks_answer is LeaksAnswer.FOUND)
    more = len(children.runs) + children.more - 1
    return f"CHILD  {_describe_run(run, names)}{f'; {more:,} more (--verbose)' if more else ''}"


def _describe_unrecorded(children: ChildRuns[Summary]) -> str:
    shown = list(dict.fromkeys(_shorten(command) for command in children.unrecorded))
    commands = "; ".join(shown[:_MAX_COMMANDS])
    more = "; ..." if len(shown) > _MAX_COMMANDS else ""
    count = children.unrecorded_count
    ran = "1 child process ran and was" if count == 1 else f"{units.number(count)} child processes ran and were"
    return f"{ran} not recorded ({commands}{more}): alloctrace run --follow records them."


def _describe_run(run: ChildRun[Summary], names: SiteNames) -> str:
    name = f"process {run.process}, {_shorten(run.command)}"
    if run.summary is None:
        return f"{name}: its trace cannot be read ({names.file(run.trace)})"
    peaks = [f"{units.size(device.peak.bytes)} on {device.device}" for device in run.summary.devices]
    first = next(iter(leak_findings(run.summary)), None)
    verdict = "nothing allocated" if first is None else first.title
    if first is not None and first.kind in ("leak", "growth"):
        verdict = f"{LABELS[first.kind]} {verdict}"
    return f"{name}: peak {' and '.join(peaks) or '0 B'}; {verdict} ({names.file(run.trace)})"


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
                    {"device": device.device, "bytes": device.peak.bytes}
                    for device in (run.summary.devices if run.summary is not None else ())
                ],
                "leaks": [
                    finding.title
                    for finding in (leak_findings(run.summary) if run.summary is not None else ())
                    if finding.kind in ("leak", "growth")
                ],
            }
            for run in children.runs
        ],
        "more_recorded": children.more,
        "not_recorded": list(children.unrecorded),
    }
