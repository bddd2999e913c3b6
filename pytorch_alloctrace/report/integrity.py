"""Missing parts and contradictions of a trace, as text."""

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
_EFFECT_OF_GAPS = (
    "Where events are missing, memory may be counted as live after it was freed, or not be counted although it is live."
)
_SPOOL_HINT = "If the program was killed and its spool was moved away, name it with --spool."


def effects(integrity: Integrity, if_truncated: str) -> tuple[str, ...]:
    """Return sentences on how missing parts affect an answer; `if_truncated` is the sentence on a missing end."""
    return (
        *((f"It is {describe_compaction(integrity)}",) if integrity.compacted_until else ()),
        *((if_truncated, _SPOOL_HINT) if integrity.is_truncated else ()),
        *((_EFFECT_OF_GAPS,) if integrity.has_gaps else ()),
    )


def describe_compaction(integrity: Integrity) -> str:
    return (
        f"compacted up to event {integrity.compacted_until - 1:,}: that part has sums by line, peaks, leaks and coarse "
        "curves, but no single events."
    )


def list_limitations(integrity: Integrity) -> tuple[str, ...]:
    limitations = []
    if integrity.bound_exceeded:
        limitations.append(
            f"Its files are larger than max_bytes={integrity.max_bytes:,}: live blocks and stacks cannot be compacted, "
            "and need more."
        )
    if integrity.keeps_less:
        limitations.append(
            f"max_bytes={integrity.max_bytes:,} has no room for the single events of the last "
            f"{integrity.keep_ns / 1e9:,.10g} s (keep): the trace has fewer."
        )
    if integrity.unknown_stacks:
        verb = "has" if integrity.unknown_stacks == 1 else "have"
        limitations.append(f"{counted(integrity.unknown_stacks, 'event')} {verb} no stack, or its outer frames alone.")
    return tuple(limitations)


def complete_note(integrity: Integrity, trace: str = "") -> tuple[str, str] | None:
    """Return label and text of the note on a complete trace, or None; `trace` is its name, if there are two."""
    limitations = list_limitations(integrity)
    if integrity.compacted_until:
        subject = f"{trace} is " if trace else ""
        return COMPACTED, " ".join((f"{subject}{describe_compaction(integrity)}", *limitations))
    return (NOTE, " ".join((f"{trace}:", *limitations) if trace else limitations)) if limitations else None


def write_incomplete(integrity: Integrity, if_truncated: str, screen: Screen, trace: str = "") -> None:
    """Write the missing or compacted parts and the limitations of a trace; `trace` is its name, if there are two."""
    if integrity.is_complete:
        if note := complete_note(integrity, trace):
            label, text = note
            screen.text(Text.assemble((label, "bold"), f"  {text}"), hanging=len(label) + 2)
            screen.blank()
        return
    subject = f"{trace} is " if trace else ""
    screen.text(Text.assemble((LABEL, "bold yellow"), f"  {subject}{integrity}."), hanging=len(LABEL) + 2)
    for sentence in effects(integrity, if_truncated):
        screen.text(sentence, len(LABEL) + 2)
    screen.blank()


_MAX_FAULTS = 20  # of each list


def write_verification(verification: Verification, screen: Screen) -> None:
    label, style = ("OK", "bold green") if verification.ok else ("FOUND", "bold red")
    states = units.counted(verification.states, "allocator state")
    agreement = f"the replay equals {verification.agreeing:,} of {states} in the trace"
    title = f"{agreement}; {units.counted(verification.contradictions, 'event')} contradict earlier events."
    screen.text(Text.assemble((label, style), "  ", title[:1].upper() + title[1:]), hanging=len(label) + 2)
    if verification.lost:
        screen.text(
            f"{units.counted(verification.lost, 'event')} lost or corrupt: states that depend on them are unknown.", 2
        )
    if verification.after_loss or verification.resumed:
        screen.text(
            f"After losses, {units.counted(verification.after_loss, 'event')} did not fit; the replay resumed from "
            f"{units.counted(verification.resumed, 'state')}.",
            2,
        )
    if verification.void_states:
        screen.text(f"{units.counted(verification.void_states, 'incomplete allocator state')} in the trace.", 2)
    if verification.unmatched_frees:
        frees = units.counted(verification.unmatched_frees, "free")
        screen.text(f"{frees} of blocks whose allocation is not in the trace.", 2)
    _write_faults("State that the replay does not equal", verification.differences, screen)
    _write_faults("Event that contradicts earlier events", verification.contradiction_list, screen)


def _write_faults(title: str, faults: Sequence[Contradiction], screen: Screen) -> None:
    for fault in faults[:_MAX_FAULTS]:
        screen.text(f"{title}: event {fault.seq:,} on {fault.device}: {fault.sentence}.", 2, hanging=4)
    if len(faults) > _MAX_FAULTS:
        screen.text(f"and {len(faults) - _MAX_FAULTS:,} more (--json has up to 1,000 of each)", 2, style="dim")
