"""Replayed memory for people: segments, blocks, sums over time, and whether the trace agrees with itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.text import Text

from ..reading.recorded import RecordedTrace
from ..reading.replay import Contradiction, Verification
from ..reading.site_tables import Site
from . import units
from .places import PlaceNames
from .screen import Screen

_SHOWN = 20
"""Of a list of faults."""
_MAP = {"active_allocated": "█", "active_pending_free": "▒", "inactive": "·"}
_PLAIN_MAP = {"active_allocated": "#", "active_pending_free": "%", "inactive": "."}


def write_segments(segments: pd.DataFrame, blocks: pd.DataFrame, screen: Screen, top: int) -> None:
    """The largest segments, each with a map of its blocks."""
    if segments.empty:
        screen.text(
            "No segments at this moment: nothing is reserved, or the allocator tells none (the CPU's never does)."
        )
        return
    for device, of_device in segments.groupby("device", sort=False):
        total, active = int(of_device["total_size"].sum()), int(of_device["active_size"].sum())
        count = units.counted(len(of_device), "segment")
        title = f"{units.size(total)} reserved in {count}, of it {units.size(active)} active"
        screen.text(Text.assemble((str(device), "bold"), f"  {title}"))
        largest = of_device.nlargest(top, "total_size", keep="first").sort_values("address")
        for row in largest.to_dict("records"):
            inside = blocks[(blocks["device"] == device) & (blocks["segment"] == row["address"])]
            write_segment({str(name): value for name, value in row.items()}, inside, screen)
        if len(of_device) > len(largest):
            rest = total - int(largest["total_size"].sum())
            more = units.counted(len(of_device) - len(largest), "more segment")
            screen.text(f"and {more} of {units.size(rest)} (--top 0 shows all)", 2, style="dim")


def write_segment(row: dict[str, Any], blocks: pd.DataFrame, screen: Screen) -> None:
    """A segment (a row of `Trace.segments`) with a map of its blocks."""
    notes = [str(row["segment_type"])]
    if row["is_expandable"]:
        notes.append("expandable")
    if row["stream"]:
        notes.append(f"stream {row['stream']:#x}")
    if tuple(row["segment_pool_id"]) != (0, 0):
        notes.append(f"pool {tuple(row['segment_pool_id'])}")
    used = units.share(row["active_size"], row["total_size"])
    head = f"{row['address']:#x}  {units.size(row['total_size']):>9}  {used:>5} active  "
    tail = ", ".join(notes)
    room = screen.width - len(head) - len(tail) - 4
    screen.text(head + _map(blocks, row, min(max(room, 4), 60), screen.plain) + "  " + tail, 2)


def _map(blocks: pd.DataFrame, segment: dict[str, Any], width: int, plain: bool) -> str:
    """One character for each equal part of the segment: what most of its bytes are."""
    signs = _PLAIN_MAP if plain else _MAP
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    per_cell = segment["total_size"] / width
    for address, size, state in zip(blocks["address"], blocks["nbytes"], blocks["state"], strict=True):
        begin = (int(address) - int(segment["address"])) / per_cell
        end = begin + int(size) / per_cell
        for cell in range(int(begin), min(int(end) + 1, width)):
            covered = min(end, cell + 1) - max(begin, cell)
            shares[cell][state] = shares[cell].get(state, 0.0) + covered
    return "".join(signs[max(share, key=lambda state: share[state])] if share else " " for share in shares)


def write_blocks(blocks: pd.DataFrame, trace: RecordedTrace, screen: Screen, names: PlaceNames, top: int) -> None:
    """The largest blocks that are not free, with the line that made each."""
    live = blocks[blocks["state"] != "inactive"]
    free = blocks[blocks["state"] == "inactive"]
    for device in blocks["device"].unique():
        held, idle = live[live["device"] == device], free[free["device"] == device]
        title = f"{units.size(held['nbytes'].sum())} in {units.counted(len(held), 'block')}"
        if len(idle):
            title += f", {units.size(idle['nbytes'].sum())} free in {units.counted(len(idle), 'piece')}"
        screen.text(Text.assemble((str(device), "bold"), f"  {title}"))
        largest = held.nlargest(top, "nbytes", keep="first")
        for row in largest.to_dict("records"):
            site = Site.of_stack(trace.stacks, int(row["stack_id"]))
            facts = (
                f"{units.size(row['nbytes']):>9}  {row['address']:#x}  {units.duration(row['age_ns'] / 1e9):>10} old"
            )
            pending = "  waits for a stream" if row["state"] == "active_pending_free" else ""
            screen.text(f"{facts}  {names.place(site)}{pending}", 2, hanging=13)
            source = names.source(site)
            if source:
                screen.source(source, 13)
            screen.frames(names.stack(int(row["stack_id"])), 13)
        if len(held) > len(largest):
            more = units.counted(len(held) - len(largest), "more block")
            rest = units.size(held["nbytes"].sum() - largest["nbytes"].sum())
            screen.text(f"and {more} of {rest} (--top 0 shows all)", 2, style="dim")
    if blocks.empty:
        screen.text("No blocks at this moment.")


def write_timeline(timeline: pd.DataFrame, screen: Screen) -> None:
    """A chart of each sum, between its lowest and its highest."""
    for device, rows in timeline.groupby("device", sort=False):
        seconds = (int(rows["time_ns"].iloc[-1]) - int(rows["time_ns"].iloc[0])) / 1e9
        screen.text(Text.assemble((str(device), "bold"), f"  over {units.duration(seconds)}"))
        for name in (
            "requested",
            "allocated",
            "active",
            "reserved",
            "releasable",
            "stranded",
            "largest_free",
            "outside",
        ):
            highest = rows[f"{name}_max"] if f"{name}_max" in rows else rows[name]
            if highest.isna().all():
                continue
            levels = [int(level) for level in highest.dropna()]
            chart = units.sparkline(levels, max(min(screen.width - 52, 60), 10), plain=screen.plain)
            line = Text.assemble(f"{name.replace('_', ' '):13}", (chart, "green"))
            line.append(f"  {units.size(min(levels))} to {units.size(max(levels))}, at the end {_last(rows[name])}")
            screen.text(line, 2)
        if rows["external_fragmentation"].notna().any():
            share = f"{rows['external_fragmentation'].max():.0%}".replace("%", " %")
            last = f"{rows['external_fragmentation'].iloc[-1]:.0%}".replace("%", " %")
            screen.text(f"external fragmentation: at most {share}, at the end {last}", 2)


def _last(values: pd.Series[Any]) -> str:
    last = values.iloc[-1]
    return "not told" if pd.isna(last) else units.size(int(last))


def write_verification(found: Verification, screen: Screen) -> None:
    """What agrees and what does not."""
    label, style = ("OK", "bold green") if found.ok else ("FOUND", "bold red")
    agreeing = f"the replay equals {found.agreeing:,} of {units.counted(found.states, 'allocator state')} in the trace"
    title = f"{agreeing}; {units.counted(found.contradictions, 'event')} contradict what came before."
    screen.text(Text.assemble((label, style), "  ", title[:1].upper() + title[1:]), hanging=len(label) + 2)
    if found.integrity != "complete":
        screen.text(f"The trace is {found.integrity}: what is not in it is not known.", 2)
    if found.lost:
        screen.text(f"{units.counted(found.lost, 'event')} lost or damaged: what depends on them is not known.", 2)
    if found.after_loss or found.resumed:
        screen.text(
            f"After losses {units.counted(found.after_loss, 'event')} did not fit; the replay went on from "
            f"{units.counted(found.resumed, 'state')}.",
            2,
        )
    if found.void_states:
        screen.text(f"{units.counted(found.void_states, 'allocator state')} incomplete in the trace.", 2)
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
