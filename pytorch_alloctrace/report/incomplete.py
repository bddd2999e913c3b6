"""That a part of a trace is missing, and what this does to an answer: said before the answer, by every verb."""

from __future__ import annotations

from rich.text import Text

from ..reading.integrity import Integrity
from .screen import Screen

LABEL = "INCOMPLETE"
IN_DIAGNOSIS = "What happened after the break is unknown: a higher peak, a leak, a request that ran out of memory."
_GAPS = (
    "Where events are missing, memory may be counted as live though it was freed, or not be counted though it was"
    " allocated."
)
_SPOOL = "If the program was killed and its spool was moved away, name it with --spool."


def effects(integrity: Integrity, if_cut: str) -> tuple[str, ...]:
    """What it does to an answer that a part is missing; nothing for a whole trace. if_cut: if the end is missing."""
    return (
        *((if_cut, _SPOOL) if integrity.cut else ()),
        *((_GAPS,) if integrity.has_gaps else ()),
    )


def write_incomplete(integrity: Integrity, if_cut: str, screen: Screen, trace: str = "") -> None:
    """Says it, if a part is missing. trace: the name of the trace, where there are two."""
    if integrity.whole:
        return
    name = f"{trace} is " if trace else ""
    screen.text(Text.assemble((LABEL, "bold yellow"), f"  {name}{integrity}."), hanging=len(LABEL) + 2)
    for sentence in effects(integrity, if_cut):
        screen.text(sentence, len(LABEL) + 2)
    screen.blank()
