"""Objects of the program that held the memory of a device, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from ..analysis.leaks.leak import NoHolder
from ..analysis.usage.held_memory import HeldMemory
from ..analysis.usage.held_rows import MODEL_ROLES, HeldRow
from ..reading.positions import Position
from ..reading.recorded import FinalScan
from . import units
from .cures import describe_views
from .growth import describe_no_holder, quote_store
from .screen import Screen
from .site_names import SiteNames

_COLUMN = 9
_UNHELD_LINES = 3
"""Maximum number of lines listed whose memory none of the objects held."""
_MOST = 0.99
"""Minimum share of roles in memory that no object held for no other explanation of it."""
_OF_MODELS = {
    "parameter": "in parameters of models",
    "buffer": "in buffers of models",
    "gradient": "in gradients (`.grad` of parameters)",
    "optimizer state": "in the state of optimizers",
}
_SCAN = ("device", "event", "step", "seconds", "distance_seconds", "live_bytes", "unheld_bytes", "unheld_roles")


def holders_data(held: HeldMemory | NoHolder, top: int) -> dict[str, Any]:
    if isinstance(held, NoHolder):
        return {"scan": None, "rows": [], "no_holder": held}
    scan = {name: getattr(held, name) for name in _SCAN}
    scan["unheld_sites"] = held.unheld_sites[:top]
    scan["peak_bytes"] = held.peak.requested_bytes
    return {"scan": scan, "rows": held.rows[:top], "no_holder": None}


def describe_row(row: HeldRow, names: SiteNames) -> str:
    """Return the description of an object, or of merged ones with their number: "model (24 parameters), local of"."""
    [description], name = row.holder.names, row.holder.name
    if row.objects == 1:
        return names.referrer(description)
    number = units.counted(row.objects, row.role if row.role in MODEL_ROLES else "object")
    return f"{names.referrer(name)} ({number}){names.referrer(description.removeprefix(name))}"


def write_no_scan(reason: NoHolder, final_scan: FinalScan | None, screen: Screen) -> None:
    # Older traces have no reason.
    for sentence in describe_no_holder(reason, final_scan) or describe_no_holder(NoHolder.NO_SCAN, None):
        screen.text(sentence)


def write_holders(held: HeldMemory, at: Position | None, screen: Screen, names: SiteNames, top: int) -> None:
    """Write the scan, the objects that held the most, and the memory that no object held. `at`: None for the peak."""
    when = f"at {units.duration(held.seconds)}" if held.step is None else f"in step {held.step:,}"
    where = "the peak" if at is None else f"event {at:,}" if isinstance(at, int) else at
    relation = "after" if held.distance_seconds > 0 else "before"
    distance = f"at {where}"
    if held.distance_seconds:
        distance = f"{units.duration(abs(held.distance_seconds))} {relation} {where}"
    peak = f"; {units.size(held.peak.requested_bytes)} at the peak" if at is None else ""
    title = f"  Object scan {when}, {distance}: {units.size(held.live_bytes)} live{peak}"
    screen.text(Text.assemble((held.device, "bold"), title), hanging=2)
    counts = [f"{'about ' if row.is_estimated else ''}{units.counted(row.blocks, 'block')}" for row in held.rows[:top]]
    count_column = max(map(len, counts), default=0)
    margin = _COLUMN + count_column + 4
    for row, count in zip(held.rows, counts, strict=False):
        holder = row.holder
        amount = f"{units.size(row.bytes):>{_COLUMN}}  {count:>{count_column}}"
        screen.text(f"{amount}  {describe_row(row, names)}", hanging=margin)
        if row.objects == 1 and not holder.path.startswith(holder.name):
            screen.text(f"reached by {names.referrer(holder.path)}", margin, hanging=margin + 2, style="dim")
        if holder.store is not None:
            store = quote_store(holder.store_kind, holder.store, names)
            screen.text(store, margin, hanging=margin + 2, style="dim")
        for sentence in describe_views(holder, "Its tensors"):
            screen.text(sentence, margin, hanging=margin + 2, style="dim")
    if others := held.rows[top:]:
        omitted = units.counted(sum(row.objects for row in others), "more object")
        more = f"and {omitted} with {units.size(sum(row.bytes for row in others))} (--top 0 shows all)"
        screen.text(more, margin, style="dim")
    for site in held.unheld_sites:
        if site.site.is_workspace:
            workspace = f"{names.site(site.site)}: the library keeps it until the process ends"
            screen.text(f"{units.size(site.bytes):>{_COLUMN}}  {workspace}", hanging=_COLUMN + 2)
    if held.unexplained_bytes:
        unheld = "in none of the recorded objects: "
        by_role = [f"{units.size(size)} {_OF_MODELS[role]}" for role, size in held.unheld_roles.items()]
        if by_role:
            unheld += ", ".join(by_role)
        if sum(held.unheld_roles.values()) < _MOST * held.unexplained_bytes:
            unheld += "; the rest is " if by_role else ""
            unheld += "held by C++, by running calls, or by objects that the scan omitted"
        screen.text(f"{units.size(held.unexplained_bytes):>{_COLUMN}}  {unheld}", hanging=_COLUMN + 2)
        lines = [site for site in held.unheld_sites if not site.site.is_workspace]
        for site in lines[:_UNHELD_LINES]:
            origin = f"{units.size(site.bytes)} from {names.holder(site)}"
            screen.text(origin, _COLUMN + 2, hanging=_COLUMN + 4, style="dim")
