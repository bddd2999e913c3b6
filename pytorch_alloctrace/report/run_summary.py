"""The peak and the first finding of a run in two lines: `diagnose --brief`, and the end of `alloctrace run`."""

from __future__ import annotations

from ..analysis.summary import Summary
from ..reading.recorded import RecordedTrace
from . import units
from .children import leaking_child
from .finding import LABELS, NOTES
from .site_names import SiteNames
from .verdict import diagnosis

_HOST = ("cpu", "pinned")
_LEAKS = ("leak", "growth")


def run_summary(trace: RecordedTrace, summary: Summary) -> str:
    """Return the peak of the GPU with the highest peak (else of the host), and the first finding, a line each."""
    if not summary.devices:
        return f"PEAK  nothing was allocated through torch\n{_describe_finding(summary)}\n"
    gpus = [device.device for device in summary.devices if device.device not in _HOST]
    return f"{_describe_peak(trace, next(iter(gpus), summary.devices[0].device))}\n{_describe_finding(summary)}\n"


def _describe_peak(trace: RecordedTrace, device: str) -> str:
    allocated, reserved = (trace.replay.peak(measure, device) for measure in ("allocated", "reserved"))
    sizes = [f"{units.size(allocated.bytes if allocated is not None else 0)} allocated"]
    if reserved is not None:
        sizes.append(f"{units.size(reserved.bytes)} reserved")
    device_bytes = trace.device_bytes.get(device)
    of_device = f" of {units.size(device_bytes)}" if device_bytes else ""
    return f"PEAK  {device}: {', '.join(sizes)}{of_device}"


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
