"""The peak and the first finding of a run in two lines: `diagnose --brief`, and the end of `alloctrace run`."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.summary import Summary
from . import units
from .children import leaking_child
from .finding import LABELS, NOTES, Finding
from .first_screen import describe_devices, order_devices
from .site_names import SiteNames
from .verdict import diagnosis, no_allocations

_LEAKS = ("leak", "growth")


def run_summary(summary: Summary) -> str:
    """Return the peaks of the devices, as on the first screen, and the first finding, a line each."""
    findings = [finding for finding in diagnosis(summary) if finding.kind not in NOTES]
    child = leaking_child(summary.children, SiteNames(summary.program.working_directory))
    is_leaking = any(finding.kind in _LEAKS for finding in findings)
    worst = [child] if child is not None and not is_leaking else [_describe_finding(findings)] if findings else []
    devices = order_devices(summary, findings)
    return "\n".join((describe_devices(devices) if devices else no_allocations(summary), *worst, ""))


def _describe_finding(findings: Sequence[Finding]) -> str:
    others = sum(finding.kind not in ("no_leak", "not_judged") for finding in findings[1:])
    more = f" (and {units.counted(others, 'more finding')})" if others else ""
    return f"{LABELS[findings[0].kind]}  {findings[0].title}{more}"
