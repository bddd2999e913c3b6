"""What is missing from a trace and what contradicts itself in it, as text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..reading.integrity import Integrity
from ..reading.replay import Contradiction, Verification
from . import units
from .screen import Screen
from .units import counted

LABEL = "INCOMPLETE"
COMPACTED = "COMPACTED"
NOTE = "NOTE"
IN_DIAGNOSIS = "What happened after the break is unknown: a higher peak, a leak, a request that ran out of memory."
_GAPS = (
    "Where events are missing, memory may be counted as live though it was freed, or not be counted though it was"
    " allocated."
)
_SPOOL = "If the program was killed and its spool was moved away, name it with --spool."


def effects(integrity: Integrity, if_cut: str) -> tuple[str, ...]:
    """What it does to an answer that a part is missing; nothing for a whole trace. if_cut: if the end is missing."""
    return (
        *((f"It is {describe_compaction(integrity)}",) if integrity.compacted_until else ()),
        *((if_cut, _SPOOL) if integrity.cut else ()),
        *((_GAPS,) if integrity.has_gaps else ()),
    )


def describe_compaction(integrity: Integrity) -> str:
    """Which part of a trace is compacted, and what is left of it: the end of a sentence."""
    return (
        f"compacted up to event {integrity.compacted_until - 1:,}: of what came before there are sums by line, peaks, "
        "leaks and coarse curves, but no single events."
    )


def reservations(integrity: Integrity) -> tuple[str, ...]:
    """What a whole trace does not keep to, or tells apart less well than it could."""
    said = []
    if integrity.bound_exceeded:
        said.append(
            f"Its files are larger than max_bytes={integrity.max_bytes:,}: what cannot be compacted, live blocks and "
            "stacks, takes more than its share."
        )
    if integrity.keeps_less:
        said.append(
            f"max_bytes={integrity.max_bytes:,} has no room for the single events of the last "
            f"{integrity.keep_ns / 1e9:,.10g} s, which keep asks for: fewer are there."
        )
    if integrity.unknown_stacks:
        have = "has" if integrity.unknown_stacks == 1 else "have"
        said.append(f"{counted(integrity.unknown_stacks, 'event')} {have} no stack, or its outer frames alone.")
    return tuple(said)


def of_whole(integrity: Integrity, trace: str = "") -> tuple[str, str] | None:
    """The label, and what is said of a trace of which nothing is missing. trace: its name, where there are two."""
    said = reservations(integrity)
    if integrity.compacted_until:
        name = f"{trace} is " if trace else ""
        return COMPACTED, " ".join((f"{name}{describe_compaction(integrity)}", *said))
    return (NOTE, " ".join((f"{trace}:", *said) if trace else said)) if said else None


def write_incomplete(integrity: Integrity, if_cut: str, screen: Screen, trace: str = "") -> None:
    """Write what is missing, compacted into sums or coarser than it could be. trace: its name, if there are two."""
    if integrity.whole:
        if said := of_whole(integrity, trace):
            label, text = said
            screen.text(Text.assemble((label, "bold"), f"  {text}"), hanging=len(label) + 2)
            screen.blank()
        return
    name = f"{trace} is " if trace else ""
    screen.text(Text.assemble((LABEL, "bold yellow"), f"  {name}{integrity}."), hanging=len(LABEL) + 2)
    for sentence in effects(integrity, if_cut):
        screen.text(sentence, len(LABEL) + 2)
    screen.blank()


_SHOWN = 20
"""Most faults of each list."""


def write_verification(found: Verification, screen: Screen) -> None:
    """What agrees and what does not."""
    label, style = ("OK", "bold green") if found.ok else ("FOUND", "bold red")
    agreeing = f"the replay equals {found.agreeing:,} of {units.counted(found.states, 'allocator state')} in the trace"
    title = f"{agreeing}; {units.counted(found.contradictions, 'event')} contradict what came before."
    screen.text(Text.assemble((label, style), "  ", title[:1].upper() + title[1:]), hanging=len(label) + 2)
    if found.lost:
        screen.text(f"{units.counted(found.lost, 'event')} lost or damaged: what depends on them is unknown.", 2)
    if found.after_loss or found.resumed:
        screen.text(
            f"After losses, {units.counted(found.after_loss, 'event')} did not fit; the replay resumed from "
            f"{units.counted(found.resumed, 'state')}.",
            2,
        )
    if found.void_states:
        screen.text(f"{units.counted(found.void_states, 'incomplete allocator state')} in the trace.", 2)
    if found.unmatched_frees:
        frees = units.counted(found.unmatched_frees, "free")
        screen.text(f"{frees} of blocks whose allocation is not in the trace.", 2)
    _list("State that the replay does not equal", found.differences, screen)
    _list("Event that contradicts what came before", found.contradiction_list, screen)


def _list(title: str, found: Sequence[Contradiction], screen: Screen) -> None:
    for item in found[:_SHOWN]:
        screen.text(f"{title}: event {item.seq:,} on {item.device}: {item.sentence}.", 2, hanging=4)
    if len(found) > _SHOWN:
        screen.text(f"and {len(found) - _SHOWN:,} more (--json has up to 1,000 of each)", 2, style="dim")
