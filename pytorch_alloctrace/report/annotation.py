"""Annotated source file as text; JSON and CSV have the table of `Trace.annotate`."""

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

_CONTEXT_LINES = 2
"""Number of context lines before and after a line with figures."""
_COLUMN = 9
"""Width of a size, in columns."""
_HEADER = re.compile(r"\s*(?:async\s+def|def|class)\s")
_MIN_HIGHLIGHT_SHARE = 0.1
"""Minimum share of the peak to highlight a line."""
_TEXT_NOTES = {
    TextFrom.CHANGED: "The file has changed since the recording: only lines in the trace are shown.",
    TextFrom.MISSING: "The file was not found: only lines in the trace are shown.",
}


def write_annotation(annotation: Annotation, span: Span, begin_ns: int, screen: Screen, names: SiteNames) -> None:
    """Write the lines with figures and their context; times count from `begin_ns`."""
    label = "LINES"
    indent = len(label) + 2
    is_whole = span.is_whole
    within = "" if is_whole else f", {span}"
    title = Text.assemble(
        (label, "bold"), f"  {names.file(annotation.filename)}: memory of {annotation.device}{within}"
    )
    screen.text(title, hanging=indent)
    peak = annotation.peak
    when = f"{units.size(peak.bytes)} at {units.duration((peak.time_ns - begin_ns) / 1e9)}"
    step = "" if peak.step is None else f" in step {peak.step}"
    net = "at end: live at the end" if is_whole else "change: by how much its live bytes changed"
    if span.regions:
        net += ", summed over the regions"
    screen.text(
        f"allocated: by the line and everything that it called; at peak: live at the peak ({when}{step}); {net}.",
        indent,
    )
    if annotation.text_from is not TextFrom.FILE:
        screen.text(_TEXT_NOTES[annotation.text_from], indent, style="yellow")
    table = {int(row["line"]): row for row in rows(annotation.table)}
    if not any(_has_figures(row) for row in table.values()):
        screen.text("None of its lines allocated anything.", indent)
        return
    screen.blank()
    width = len(str(max(table)))
    heads = ("allocated", "at peak", "at end" if is_whole else "change")
    screen.text(Text("  ".join(f"{head:>{_COLUMN}}" for head in heads) + f"  {'line':>{max(width, 4)}}", style="bold"))
    last = 0
    for line in _select_lines(table):
        if last and line > last + 1:
            screen.text(Text(f"{'...':>{3 * _COLUMN + 6 + max(width, 4)}}", style="dim"))
        _write_line(table[line], annotation, is_whole, max(width, 4), screen)
        last = line


def _write_line(row: Mapping[str, Any], annotation: Annotation, is_whole: bool, width: int, screen: Screen) -> None:
    net = units.size if is_whole else units.change
    figures = (
        units.size(row["total_bytes"]) if row["total_bytes"] else "",
        units.size(row["peak_bytes"]) if row["peak_bytes"] else "",
        net(row["net_bytes"]) if row["net_bytes"] else "",
    )
    styles = ("", "bold yellow" if row["peak_bytes"] >= _MIN_HIGHLIGHT_SHARE * annotation.peak.bytes else "", "")
    margin = Text()
    for figure, style in zip(figures, styles, strict=True):
        margin.append(f"{figure:>{_COLUMN}}", style).append("  ")
    margin.append(f"{row['line']:>{width}}  ", "dim")
    text = text_of(row["source"])
    text = printable((text or "").rstrip().expandtabs(4)) if text is not None else "(text unknown)"
    screen.source(text, margin, style="cyan" if _has_figures(row) else "dim")


def _has_figures(row: Mapping[str, Any]) -> bool:
    return bool(row["total_bytes"] or row["peak_bytes"] or row["net_bytes"])


def _select_lines(table: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return the lines with figures, their context, and the headers of their functions and classes."""
    figures = {line for line, row in table.items() if _has_figures(row)}
    selected = {
        context_line for line in figures for context_line in range(line - _CONTEXT_LINES, line + _CONTEXT_LINES + 1)
    }
    selected.update(head for line in figures for head in _find_headers(table, line))
    # Fill gaps of one line: the dots would take as much room.
    selected.update(line + 1 for line in list(selected) if line + 2 in selected)
    selected &= table.keys()
    # Drop blank lines next to dots.
    blank = {
        line
        for line in selected - figures
        if text_of(table[line]["source"]) is not None and not _strip_source(table[line])
    }
    while edge := {line for line in blank & selected if not {line - 1, line + 1} <= selected}:
        selected -= edge
    return sorted(selected)


def _find_headers(table: Mapping[int, Mapping[str, Any]], line: int) -> Iterable[int]:
    depth = _measure_depth(table[line])
    while depth and line > min(table):
        line -= 1
        row = table.get(line)
        if row is not None and _strip_source(row) and _measure_depth(row) < depth:
            depth = _measure_depth(row)
            if _HEADER.match(row["source"]):
                yield line


def _strip_source(row: Mapping[str, Any]) -> str:
    return (text_of(row["source"]) or "").strip()


def _measure_depth(row: Mapping[str, Any]) -> int:
    text = (text_of(row["source"]) or "").expandtabs(4)
    return len(text) - len(text.lstrip())
