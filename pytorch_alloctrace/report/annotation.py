"""A source file with what its lines allocated, as text. JSON and CSV are the table: see `Trace.annotate`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from ..analysis.usage.annotation import Annotation
from ..reading.source_code import TextFrom
from . import units
from .screen import Screen
from .site_names import SiteNames, printable
from .tables import rows, text_of
from .units import Span

_AROUND = 2
"""As many lines without figures are shown before and after one that has some."""
_COLUMN = 9
"""Width of a size."""
_HEADER = re.compile(r"\s*(?:async\s+def|def|class)\s")
_LARGE = 0.1
"""From this share of the peak on a line stands out."""
_WHY = {
    TextFrom.CHANGED: "The file has changed since the recording: only lines that the trace has are shown.",
    TextFrom.MISSING: "The file is not here: only lines that the trace has are shown.",
}


def write_annotation(found: Annotation, span: Span, begin_ns: int, screen: Screen, names: SiteNames) -> None:
    """The lines that have figures, with the lines around them. begin_ns: when the recording began."""
    label = "LINES"
    indent = len(label) + 2
    is_whole = span.is_whole
    within = "" if is_whole else f", {span}"
    title = Text.assemble((label, "bold"), f"  {names.file(found.filename)}: memory of {found.device}{within}")
    screen.text(title, hanging=indent)
    peak = found.peak
    when = f"{units.size(peak.bytes)} at {units.duration((peak.time_ns - begin_ns) / 1e9)}"
    step = "" if peak.step is None else f" in step {peak.step}"
    net = "at end: live at the end" if is_whole else "change: by how much what is live of it changed"
    if span.regions:
        net += ", summed up"
    screen.text(
        f"allocated: by the line and everything that it called; at peak: live at the peak ({when}{step}); {net}.",
        indent,
    )
    if found.text_from is not TextFrom.FILE:
        screen.text(_WHY[found.text_from], indent, style="yellow")
    table = {int(row["line"]): row for row in rows(found.table)}
    if not any(_has_figures(row) for row in table.values()):
        screen.text("None of its lines allocated anything.", indent)
        return
    screen.blank()
    width = len(str(max(table)))
    heads = ("allocated", "at peak", "at end" if is_whole else "change")
    screen.text(Text("  ".join(f"{head:>{_COLUMN}}" for head in heads) + f"  {'line':>{max(width, 4)}}", style="bold"))
    last = 0
    for line in _shown(table):
        if last and line > last + 1:
            screen.text(Text(f"{'...':>{3 * _COLUMN + 6 + max(width, 4)}}", style="dim"))
        _write_line(table[line], found, is_whole, max(width, 4), screen)
        last = line


def _write_line(row: Mapping[str, Any], found: Annotation, is_whole: bool, width: int, screen: Screen) -> None:
    net = units.size if is_whole else units.change
    figures = (
        units.size(row["total_bytes"]) if row["total_bytes"] else "",
        units.size(row["peak_bytes"]) if row["peak_bytes"] else "",
        net(row["net_bytes"]) if row["net_bytes"] else "",
    )
    styles = ("", "bold yellow" if row["peak_bytes"] >= _LARGE * found.peak.bytes else "", "")
    margin = Text()
    for figure, style in zip(figures, styles, strict=True):
        margin.append(f"{figure:>{_COLUMN}}", style).append("  ")
    margin.append(f"{row['line']:>{width}}  ", "dim")
    text = text_of(row["source"])
    text = printable((text or "").rstrip().expandtabs(4)) if text is not None else "(text unknown)"
    screen.source(text, margin, style="cyan" if _has_figures(row) else "dim")


def _has_figures(row: Mapping[str, Any]) -> bool:
    return bool(row["total_bytes"] or row["peak_bytes"] or row["net_bytes"])


def _shown(table: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """The lines with figures, those around them, and the heads of the functions and classes that they are in."""
    figures = {line for line, row in table.items() if _has_figures(row)}
    shown = {near for line in figures for near in range(line - _AROUND, line + _AROUND + 1)}
    shown.update(head for line in figures for head in _heads(table, line))
    # A line takes no more room than the dots that stand for it.
    shown.update(line + 1 for line in list(shown) if line + 2 in shown)
    shown &= table.keys()
    # Nor is a blank line shown next to dots.
    blank = {line for line in shown - figures if text_of(table[line]["source"]) is not None and not _text(table[line])}
    while edge := {line for line in blank & shown if not {line - 1, line + 1} <= shown}:
        shown -= edge
    return sorted(shown)


def _heads(table: Mapping[int, Mapping[str, Any]], line: int) -> Iterable[int]:
    depth = _depth(table[line])
    while depth and line > min(table):
        line -= 1
        row = table.get(line)
        if row is not None and _text(row) and _depth(row) < depth:
            depth = _depth(row)
            if _HEADER.match(row["source"]):
                yield line


def _text(row: Mapping[str, Any]) -> str:
    return (text_of(row["source"]) or "").strip()


def _depth(row: Mapping[str, Any]) -> int:
    text = (text_of(row["source"]) or "").expandtabs(4)
    return len(text) - len(text.lstrip())
