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
_SIZE_WIDTH = 9
_HEADER = re.compile(r"\s*(?:async\s+def|def|class)\s")
_MIN_HIGHLIGHTED_SHARE = 0.1  # of the peak
_TEXT_NOTES = {
    TextFrom.CHANGED: "The file has changed since the recording: only lines in the trace are shown.",
    TextFrom.MISSING: "The file was not found: only lines in the trace are shown.",
}


def write_annotation(annotation: Annotation, span: Span, begin_ns: int, screen: Screen, names: SiteNames) -> None:
    """Write the lines with figures and their context. Times are relative to `begin_ns`."""
    label = "LINES"
    indent = len(label) + 2
    is_whole = span.is_whole
    range_text = "" if is_whole else f", {span}"
    title = Text.assemble(
        (label, "bold"), f"  {names.file(annotation.filename)}: memory of {annotation.device}{range_text}"
    )
    screen.text(title, hanging=indent)
    peak = annotation.peak
    when = f"{units.size(peak.bytes)} allocated at {units.duration((peak.time_ns - begin_ns) / 1e9)}"
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
    screen.text(
        Text("  ".join(f"{head:>{_SIZE_WIDTH}}" for head in heads) + f"  {'line':>{max(width, 4)}}", style="bold")
    )
    previous_line = 0
    for line in _select_lines(table):
        if previous_line and line > previous_line + 1:
            screen.text(Text(f"{'...':>{3 * _SIZE_WIDTH + 6 + max(width, 4)}}", style="dim"))
        _write_line(table[line], annotation, is_whole, max(width, 4), screen)
        previous_line = line


def _write_line(row: Mapping[str, Any], annotation: Annotation, is_whole: bool, width: int, screen: Screen) -> None:
    format_net = units.size if is_whole else units.change
    figures = (
        units.size(row["total_bytes"]) if row["total_bytes"] else "",
        units.size(row["peak_bytes"]) if row["peak_bytes"] else "",
        format_net(row["net_bytes"]) if row["net_bytes"] else "",
    )
    styles = ("", "bold yellow" if row["peak_bytes"] >= _MIN_HIGHLIGHTED_SHARE * annotation.peak.bytes else "", "")
    margin = Text()
    for figure, style in zip(figures, styles, strict=True):
        margin.append(f"{figure:>{_SIZE_WIDTH}}", style).append("  ")
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
    selected.update(header for line in figures for header in _find_headers(table, line))
    # Fill gaps of one line: the dots need a line, too.
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
    indentation = _measure_indentation(table[line])
    while indentation and line > min(table):
        line -= 1
        row = table.get(line)
        if row is not None and _strip_source(row) and _measure_indentation(row) < indentation:
            indentation = _measure_indentation(row)
            if _HEADER.match(row["source"]):
                yield line


def _strip_source(row: Mapping[str, Any]) -> str:
    return (text_of(row["source"]) or "").strip()


def _measure_indentation(row: Mapping[str, Any]) -> int:
    text = (text_of(row["source"]) or "").expandtabs(4)
    return len(text) - len(text.lstrip())
