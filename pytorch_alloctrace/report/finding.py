"""Result of the diagnosis, made by `leaks`, `oom` and `inefficiencies`."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from ..analysis.leaks.leak import Growth, Holder, Leak
from ..reading.sites import Site
from .integrity import LABEL
from .screen import Screen, html_of
from .site_names import SiteNames

_STYLES = {
    "incomplete": (LABEL, "bold yellow"),
    "oom": ("OUT OF MEMORY", "bold red"),
    "leak": ("LEAK", "bold red"),
    "growth": ("GROWTH", "bold red"),
    "minor_leak": ("NOTE", "dim"),
    "note": ("NOTE", "dim"),
    "no_leak": ("OK", "bold green"),
    "inconclusive": ("NOTE", "bold yellow"),
    "not_judged": ("NOTE", "bold yellow"),
    "fragmentation": ("FRAGMENTED", "bold yellow"),
    "cache": ("UNUSED CACHE", "bold yellow"),
    "rounding": ("ROUNDING", "bold yellow"),
    "pending": ("PENDING FREES", "bold yellow"),
    "churn": ("CHURN", "bold yellow"),
    "garbage": ("GARBAGE", "bold yellow"),
    "autocast": ("AUTOCAST CACHE", "bold yellow"),
    "unused_graph": ("UNUSED GRAPH", "bold yellow"),
    "unused_gradients": ("UNUSED GRADIENTS", "bold yellow"),
    "outside": ("OUTSIDE", "bold yellow"),
}
NOTES = ("note", "minor_leak")
"""Kinds that need no action."""
LABELS = {kind: label for kind, (label, _) in _STYLES.items()}


@dataclass(frozen=True)
class Finding:
    """One result of the diagnosis. Bytes are requested bytes; for leaks and inconclusive findings, allocated bytes."""

    kind: str
    """Kind: "incomplete", "oom", "leak", "growth", "minor_leak", "note", "no_leak", "inconclusive", "not_judged",
    or that of an inefficiency, see `analysis.free_memory.inefficiencies`.
    """
    title: str
    """Title on one line, without a full stop."""
    device: str
    """Device as torch spells it; several devices are separated by ", "."""
    bytes: int
    """Bytes affected; 0 if nothing is wrong."""
    confidence: float | None
    """Confidence in a leak, from 0 to 1."""
    site: Site | None
    """Line that causes the finding."""
    stack_id: int
    """Number of the stack with the most bytes; 0 if there is none."""
    sentences: tuple[str, ...]
    """Evidence and remedies."""
    brief: tuple[str, ...] = ()
    """Paragraphs for the first screen, the most important first: the remedy, then the evidence; () if none are needed.
    """
    leak: Leak | None = None
    """Leak that the finding describes."""
    growth: Growth | None = None
    """Growth that an inconclusive finding or a note describes; of several lines, the largest."""
    holder: Holder | None = None
    """Holder of the blocks; for out of memory, of those of the leak that led to it."""

    def _repr_html_(self) -> str:
        def write(screen: Screen) -> None:
            write_finding(self, screen, SiteNames(""))

        return html_of(write)


def label_text(finding: Finding) -> Text:
    """Return the label in its colour."""
    return Text(*_STYLES[finding.kind])


def write_finding(finding: Finding, screen: Screen, names: SiteNames) -> int:
    """Write label, title, line and sentences; return their indent."""
    label, style = _STYLES[finding.kind]
    indent = len(label) + 2
    screen.text(Text.assemble((label, style), "  ", (finding.title, "bold")), hanging=indent)
    source = names.source(finding.site) if finding.site is not None else None
    if source:
        screen.source(source, indent)
    for sentence in finding.sentences:
        screen.text(sentence, indent)
    return indent
