"""The peak and the first finding of a run in two lines: `diagnose --brief`, and the end of `alloctrace run`."""

from __future__ import annotations

from ..analysis.summary import Summary
from . import units
from .children import leaking_child
from .finding import LABELS, NOTES
from .first_screen import describe_devices
from .site_names import SiteNames
from .verdict import diagnosis

_LEAKS = ("leak", "growth")


def run_summary(summary: Summary) -> str:
    """Return the peaks of the devices, as on the first screen, and the first finding, a line each."""
    peaks = describe_devices(summary.devices) if summary.devices else "Nothing was allocated through torch"
    return f"{peaks}\n{_describe_finding(summary)}\n"


def _describe_finding(summary: Summary) -> str:
    findings = [finding for finding in diagnosis(summary) if finding.kind not in NOTES]
    child = leaking_child(summary.children, SiteNames(summary.program.working_directory))
    if child is not None and not any(finding.kind in _LEAKS for finding in findings):
        return child
    if not findings:
        return "OK  Nothing to report"
    others = sum(finding.kind not in ("no_leak", "not_judged") for finding in findings[1:])
    more = f" (and {units.counted(others, 'more finding')})" if others else ""
    return f"{LABELS[findings[0].kind]}  {findings[0].title}{more}"
