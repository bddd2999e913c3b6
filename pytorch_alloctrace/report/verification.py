"""Whether a trace agrees with itself, as text: what `Trace.verify` returns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..reading.replay import Contradiction, Verification
from . import units
from .screen import Screen

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
