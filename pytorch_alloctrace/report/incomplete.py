"""That a part of a trace is missing, and what this does to an answer: said before the answer, by every verb."""

from __future__ import annotations

from rich.text import Text

from ..reading.integrity import Integrity
from .screen import Screen

LABEL = "INCOMPLETE"
FOLDED = "FOLDED"
IN_DIAGNOSIS = "What happened after the break is unknown: a higher peak, a leak, a request that ran out of memory."
_GAPS = (
    "Where events are missing, memory may be counted as live though it was freed, or not be counted though it was"
    " allocated."
)
_SPOOL = "If the program was killed and its spool was moved away, name it with --spool."


def effects(integrity: Integrity, if_cut: str) -> tuple[str, ...]:
    """What it does to an answer that a part is missing; nothing for a whole trace. if_cut: if the end is missing."""
    return (
        *((f"It is {folding(integrity)}",) if integrity.folded_until else ()),
        *((if_cut, _SPOOL) if integrity.cut else ()),
        *((_GAPS,) if integrity.has_gaps else ()),
    )


def folding(integrity: Integrity) -> str:
    """Which part of a trace is folded, and what is left of it: the end of a sentence."""
    return (
        f"folded up to event {integrity.folded_until - 1:,}: of what came before there are sums by line, peaks, leaks "
        "and coarse curves, but no single events."
    )


def write_incomplete(integrity: Integrity, if_cut: str, screen: Screen, trace: str = "") -> None:
    """Says it, if a part is missing, or folded into sums. trace: the name of the trace, where there are two."""
    name = f"{trace} is " if trace else ""
    if integrity.whole:
        if integrity.folded_until:
            screen.text(Text.assemble((FOLDED, "bold"), f"  {name}{folding(integrity)}"), hanging=len(FOLDED) + 2)
            screen.blank()
        return
    screen.text(Text.assemble((LABEL, "bold yellow"), f"  {name}{integrity}."), hanging=len(LABEL) + 2)
    for sentence in effects(integrity, if_cut):
        screen.text(sentence, len(LABEL) + 2)
    screen.blank()
