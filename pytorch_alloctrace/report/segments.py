"""Segments and blocks as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..reading.recorded import RecordedTrace
from ..reading.sites import Site
from . import units
from .screen import Screen
from .site_names import SiteNames
from .tables import rows

if TYPE_CHECKING:
    import pandas as pd

_MAP_CHARACTERS = {"active_allocated": "█", "active_pending_free": "▒", "inactive": "·"}
_ASCII_MAP_CHARACTERS = {"active_allocated": "#", "active_pending_free": "%", "inactive": "."}


def largest_segments(segments: pd.DataFrame, top: int) -> pd.DataFrame:
    """Return the `top` largest segments of each device, in table order."""
    return _select_largest(segments, "total_bytes", top)


def largest_blocks(blocks: pd.DataFrame, top: int) -> pd.DataFrame:
    """Return the `top` largest used blocks of each device, in table order."""
    return _select_largest(blocks[blocks["state"] != "inactive"], "block_bytes", top)


def _select_largest(table: pd.DataFrame, size_column: str, top: int) -> pd.DataFrame:
    rank = table.sort_values(size_column, ascending=False, kind="stable").groupby("device", sort=False).cumcount()
    return table[rank.reindex(table.index) < top]


def write_segments(segments: pd.DataFrame, blocks: pd.DataFrame, screen: Screen, top: int) -> None:
    if segments.empty:
        screen.text(
            "No segments: nothing is reserved at this position, or the allocator reports none (the CPU's never does)."
        )
        return
    for device, device_segments in segments.groupby("device", sort=False):
        total, active = int(device_segments["total_bytes"].sum()), int(device_segments["active_bytes"].sum())
        count = units.counted(len(device_segments), "segment")
        title = f"{units.size(total)} reserved in {count}, {units.size(active)} active"
        screen.text(Text.assemble((str(device), "bold"), f"  {title}"))
        largest = largest_segments(device_segments, top)
        for row in rows(largest):
            segment_blocks = blocks[(blocks["device"] == device) & (blocks["segment"] == row["address"])]
            write_segment(row, segment_blocks, screen)
        if len(device_segments) > len(largest):
            omitted_bytes = total - int(largest["total_bytes"].sum())
            omitted_count = units.counted(len(device_segments) - len(largest), "more segment")
            screen.text(f"and {omitted_count} with {units.size(omitted_bytes)} (--top 0 shows all)", 2, style="dim")


def write_segment(row: dict[str, Any], blocks: pd.DataFrame, screen: Screen) -> None:
    """Write a segment (a row of `Trace.segments`) with a map of its blocks."""
    notes = [str(row["segment_type"])]
    if row["is_expandable"]:
        notes.append("expandable")
    if row["stream"]:
        notes.append(f"stream {row['stream']:#x}")
    if tuple(row["segment_pool_id"]) != (0, 0):
        notes.append(f"pool {tuple(row['segment_pool_id'])}")
    used = units.share(row["active_bytes"], row["total_bytes"])
    figures = f"{row['address']:#x}  {units.size(row['total_bytes']):>9}  {used:>5} active  "
    note_text = ", ".join(notes)
    room = screen.width - len(figures) - len(note_text) - 4
    screen.text(figures + _draw_map(blocks, row, min(max(room, 4), 60), screen.plain) + "  " + note_text, 2)


def _draw_map(blocks: pd.DataFrame, segment: dict[str, Any], width: int, plain: bool) -> str:
    """Return a map of equal cells, one character each: the state of most bytes of the cell."""
    characters = _ASCII_MAP_CHARACTERS if plain else _MAP_CHARACTERS
    cells: list[dict[str, float]] = [{} for _ in range(width)]
    cell_bytes = max(segment["total_bytes"], 1) / width
    for address, size, state in zip(blocks["address"], blocks["block_bytes"], blocks["state"], strict=True):
        begin = (int(address) - int(segment["address"])) / cell_bytes
        end = begin + int(size) / cell_bytes
        for cell in range(int(begin), min(int(end) + 1, width)):
            covered = min(end, cell + 1) - max(begin, cell)
            cells[cell][state] = cells[cell].get(state, 0.0) + covered
    return "".join(characters[max(share, key=lambda state: share[state])] if share else " " for share in cells)


def write_blocks(blocks: pd.DataFrame, trace: RecordedTrace, screen: Screen, names: SiteNames, top: int) -> None:
    """Write the largest used blocks, each with its allocating line; the fullest device first."""
    import pandas as pd

    live = blocks[blocks["state"] != "inactive"]
    free = blocks[blocks["state"] == "inactive"]
    bytes_by_device = live.groupby("device", observed=True)["block_bytes"].sum()
    for device in sorted(blocks["device"].unique(), key=lambda name: -bytes_by_device.get(name, 0)):
        used_blocks, free_blocks = live[live["device"] == device], free[free["device"] == device]
        title = f"{units.size(used_blocks['block_bytes'].sum())} in {units.counted(len(used_blocks), 'block')}"
        if len(free_blocks):
            title += (
                f", {units.size(free_blocks['block_bytes'].sum())} free in {units.counted(len(free_blocks), 'piece')}"
            )
        screen.text(Text.assemble((str(device), "bold"), f"  {title}"))
        largest = used_blocks.nlargest(top, "block_bytes", keep="first")
        for row in rows(largest):
            site = Site.of_stack(trace.stacks, int(row["stack_id"]))
            age = "age unknown" if pd.isna(row["age_ns"]) else f"{units.duration(row['age_ns'] / 1e9)} old"
            facts = f"{units.size(row['block_bytes']):>9}  {row['address']:#x}  {age:>14}"
            pending_note = "  waits for a stream" if row["state"] == "active_pending_free" else ""
            screen.text(f"{facts}  {names.site(site)}{pending_note}", 2, hanging=13)
            source = names.source(site)
            if source:
                screen.source(source, 13)
            screen.frames(names.stack(int(row["stack_id"])), 13)
        if len(used_blocks) > len(largest):
            omitted_count = units.counted(len(used_blocks) - len(largest), "more block")
            omitted_size = units.size(used_blocks["block_bytes"].sum() - largest["block_bytes"].sum())
            screen.text(f"and {omitted_count} with {omitted_size} (--top 0 shows all)", 2, style="dim")
    if blocks.empty:
        screen.text("No blocks at this position.")
