"""Verdicts on a trace and on a range of a run, such as a notebook cell."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.text import Text

from ..analysis.range_summary import DeviceRange, RangeSummary
from ..analysis.summary import Summary
from . import units
from .composition import write_position, write_table
from .difference import Changes, write_changes
from .finding import Finding
from .first_screen import write_first_screen
from .integrity import IN_DIAGNOSIS, write_incomplete
from .leaks import leak_findings
from .oom import oom_finding
from .screen import Screen, html_of, text_of
from .site_names import SiteNames
from .verdict import diagnosis, write_findings


class Diagnosis(tuple[Finding, ...]):
    """Findings, the most severe first. `str` returns the verdict; a notebook shows it."""

    _summary: Summary

    def __new__(cls, summary: Summary) -> Diagnosis:
        instance = super().__new__(cls, diagnosis(summary))
        instance._summary = summary
        return instance

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self._summary,)

    def __str__(self) -> str:
        return text_of(self._write)

    def _repr_html_(self) -> str:
        return html_of(self._write)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the verdict in IPython on a terminal."""
        printer.text(str(self).rstrip())

    def _write(self, screen: Screen) -> None:
        write_first_screen(self._summary, screen)


_MAX_ROWS = 5
# Without "not_judged": most cells are too short to be judged.
_LEAK_KINDS = ("leak", "growth", "inconclusive", "no_leak")


class RangeVerdict:
    """Verdict on a range, such as the cell "In[3]". `str` returns the text; a notebook shows it."""

    def __init__(self, name: str, summary: RangeSummary) -> None:
        self._name = name
        self._summary = summary

    def __str__(self) -> str:
        return text_of(self._write)

    def _repr_html_(self) -> str:
        return html_of(self._write)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self).rstrip())

    def _write(self, screen: Screen) -> None:
        summary = self._summary
        names = SiteNames(summary.working_directory)
        write_incomplete(summary.integrity, IN_DIAGNOSIS, screen)
        step_text = f", {units.counted(summary.steps, 'step')}" if summary.steps else ""
        facts = f"{units.duration(summary.seconds)}{step_text}, {units.counted(summary.events, 'event')}"
        trace_name = names.file(summary.trace)
        screen.text(Text.assemble((self._name, "bold"), f"  {facts}: a part of {trace_name}"), hanging=2)
        if not summary.devices:
            screen.text("It allocated nothing.")
        findings = [oom_finding(failure, names, summary.advisor) for failure in summary.refused]
        if summary.leaks is not None:
            findings += [finding for finding in leak_findings(summary.leaks) if finding.kind in _LEAK_KINDS]
        write_findings(findings, screen, names)
        for device in summary.devices:
            self._write_device(device, screen, names)

    def _write_device(self, device: DeviceRange, screen: Screen, names: SiteNames) -> None:
        screen.blank()
        peak = dataclasses.replace(device.peak, since=None, until=None)  # the heading names the range
        write_position(peak, self._summary.begin_ns, screen)
        write_table(peak.composition, "line", screen, names, _MAX_ROWS, peak.package_lines, {})
        screen.blank()
        begin_text, end_text = f"the beginning of {self._name}", "its end"
        write_changes(Changes(peak.device, begin_text, end_text, "line", device.changes), screen, names, _MAX_ROWS)
