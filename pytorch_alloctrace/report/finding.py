"""A finding: one thing that the diagnosis reports, in words. `leaks`, `oom` and `conditions` each word their own."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from ..analysis.leaks.leak import Leak
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
    "no_leak": ("OK", "bold green"),
    "inconclusive": ("NOTE", "bold yellow"),
    "not_judged": ("NOTE", "bold yellow"),
    "fragmentation": ("FRAGMENTED", "bold yellow"),
    "cache": ("UNUSED CACHE", "bold yellow"),
    "rounding": ("ROUNDING", "bold yellow"),
    "pending": ("PENDING FREES", "bold yellow"),
    "churn": ("CHURN", "bold yellow"),
    "outside": ("OUTSIDE", "bold yellow"),
}
LABELS = {kind: label for kind, (label, _) in _STYLES.items()}
"""What a finding of each kind begins with."""


@dataclass(frozen=True)
class Finding:
    """One statement about the trace. Bytes are requested bytes; of leaks and what is not decided, allocated bytes."""

    kind: str
    """"incomplete", "oom", "leak", "growth", "minor_leak", "no_leak", "inconclusive", "not_judged",
    or the kind of an inefficiency: see `analysis.free_memory.inefficiencies`."""
    title: str
    """One line without a full stop."""
    device: str
    """As torch spells it; several, separated by ", ", if it is about all of them."""
    bytes: int
    """What is at stake; 0 if nothing is wrong."""
    confidence: float | None
    """How certain a leak is, from 0 to 1."""
    site: Site | None
    """The line to look at."""
    stack_id: int
    """The stack with the most bytes; 0: none."""
    sentences: tuple[str, ...]
    """What it rests on, and what to do."""
    leak: Leak | None = None
    """The leak that it words."""

    def _repr_html_(self) -> str:
        """In a notebook."""

        def write(screen: Screen) -> None:
            write_finding(self, screen, SiteNames(""))

        return html_of(write)


def write_finding(finding: Finding, screen: Screen, names: SiteNames) -> int:
    """Its label, title, line and sentences. Returns their indent."""
    label, style = _STYLES[finding.kind]
    indent = len(label) + 2
    screen.text(Text.assemble((label, style), "  ", (finding.title, "bold")), hanging=indent)
    source = names.source(finding.site) if finding.site is not None else None
    if source:
        screen.source(source, indent)
    for sentence in finding.sentences:
        screen.text(sentence, indent)
    return indent
