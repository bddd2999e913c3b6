"""What each site allocates, as text.

JSON is a list with an object for each site, CSV a table: see `analysis.usage.lifetimes.site_lifetimes`. Sizes in bytes,
times in nanoseconds; per step: the average over the last steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.text import Text

from . import units
from .screen import ENTRY_BAR, Screen
from .site_names import SiteNames
from .tables import rows, site_of

_COLUMN = 9
_LARGE = 1 << 20
"""A temporary block from this size on is large: smaller ones come from the small pool."""


@dataclass(frozen=True)
class _Section:
    """One table of the text: the sites that lead in one respect."""

    label: str
    title: str
    column: str
    """What it is ordered by."""
    note: Callable[[dict[str, Any]], str]
    size: Callable[[float], str] = units.size


def write_lifetimes(
    table: pd.DataFrame,
    steps: int,
    at: str,
    by: str,
    screen: Screen,
    names: SiteNames,
    top: int,
    *,
    since: str | None = None,
) -> None:
    """A table for each respect in which sites can lead. steps: how many were measured; since: where the range begins,
    if it is one."""
    measured = "unknown, there are no steps"
    if steps:
        measured = f"{'as in' if steps == 1 else 'the average of'} {units.last(steps, 'step')}"
    sections = [_Section("LIVE", f"at {at}: what holds the most", "live_bytes", _live)]
    if since is not None:
        table = table.assign(live_shrunk=-table["live_change"])
        sections = [
            _Section("ALLOCATED", f"from {since} to {at}, including what was freed again", "bytes", _allocated),
            _Section("GREW", f"from {since} to {at}: what holds more", "live_change", _changed, units.change),
            _Section("SHRANK", f"from {since} to {at}: what holds less", "live_shrunk", _changed, _less),
        ]
    if steps:
        sections += [
            _Section("CHURN", "per step: allocated and freed within it", "churn_per_step", _churn),
            _Section(
                "KEPT FOR BACKWARD", "per step: allocated in forward, freed in backward", "retained_per_step", _retained
            ),
            _Section("LARGE TEMPORARIES", "never live at the end of a step", "largest", _temporary),
        ]
    sections += [
        _Section(
            "SLOW CALLS", "of the allocator: over 10 us, or with a call to the driver", "slow_ns", _slow, _duration
        )
    ]
    screen.text(f"Per step: {measured}.", style="dim")
    for section in sections:
        own = table[table["temporary"] & (table["largest"] >= _LARGE)] if section.column == "largest" else table
        leading = own[own[section.column].fillna(0) > 0].sort_values(section.column, ascending=False, kind="stable")
        if len(leading):
            _write(section, leading, by, screen, names, top)


def _write(section: _Section, leading: pd.DataFrame, by: str, screen: Screen, names: SiteNames, top: int) -> None:
    screen.blank()
    screen.text(Text.assemble((section.label, "bold"), f"  {section.title}"), hanging=len(section.label) + 2)
    highest = float(leading[section.column].iloc[0])
    for row in rows(leading.head(top)):
        site, amount = site_of(row), float(row[section.column])
        bar = units.bar(amount / highest, ENTRY_BAR, plain=screen.plain)
        name, frames = f"{names.site(site)} ({section.note(row)})", names.stack(int(row["stack_id"]))
        screen.entry(section.size(amount), name, names.source(site), 0, _COLUMN, bar=bar, frames=frames)
    if len(leading) > top:
        left = float(leading[section.column].iloc[top:].sum())
        rest = "" if section.column == "largest" else f" with {section.size(left)}"
        screen.text(f"and {units.counted(len(leading) - top, f'more {by}')}{rest} (--top 0 shows all)", 2, style="dim")


def _allocated(row: dict[str, Any]) -> str:
    allocations = units.counted(int(row["allocations"]), "allocation")
    return f"{allocations}; it holds {units.change(row['live_change'])}" if row["live_change"] else allocations


def _less(size: float) -> str:
    return units.size(-size)


def _changed(row: dict[str, Any]) -> str:
    return f"to {units.size(row['live_bytes'])} in {_live(row)}"


def _live(row: dict[str, Any]) -> str:
    blocks = units.counted(int(row["live_blocks"]), "block")
    backward = row["live_backward_bytes"]
    return f"{blocks}, including {units.size(backward)} in its backward" if backward else blocks


def _churn(row: dict[str, Any]) -> str:
    note = units.averaged(row["allocations_per_step"], "allocation")
    backward = row["backward_per_step"]
    return f"{note}; backward allocates {units.size(backward)} for it" if backward else note


def _retained(row: dict[str, Any]) -> str:
    return f"{units.share(row['retained_per_step'], row['bytes_per_step'])} of what it allocates"


def _temporary(row: dict[str, Any]) -> str:
    allocations = units.averaged(row["allocations_per_step"], "allocation")
    return f"the largest; {units.size(row['bytes_per_step'])} in {allocations} per step"


def _slow(row: dict[str, Any]) -> str:
    longest = units.duration(row["slowest_ns"] / 1e9)
    return f"{units.counted(int(row['slow_calls']), 'call')}, the longest {longest}"


def _duration(nanoseconds: float) -> str:
    return units.duration(nanoseconds / 1e9)
