"""Fragmentation, as text and as plain values: how the free memory is cut up, and which lines of code pin it.

docs/json.md has the fields of the JSON; the CSV has the pinners of all devices, as many of each as --top allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from ..analysis.free_memory.fragmentation import Fragmentation
from ..reading.table import Table
from . import units
from .screen import Screen
from .segments import write_segment
from .site_names import SiteNames
from .tables import records, rows, site_of

if TYPE_CHECKING:
    import pandas as pd

_SUMS = (
    *("device", "at", "reserved_bytes", "active_bytes", "free_bytes", "releasable_bytes", "stranded_bytes"),
    *("largest_free_bytes", "external_fragmentation"),
)
_TABLES = ("pinners_by_line", "pinners", "pools", "free_pieces", "segments")
_LABEL = "PINNED"
_WORTH_SAYING = 0.01
"""A line is named if it strands at least this share of what is reserved."""
_MUCH_WORSE = 2
"""Another position is mentioned if this many times as much was stranded there."""


def fragmentation_data(found: Fragmentation, top: int) -> dict[str, Any]:
    """As plain values: the sums, and each table as a list of objects; of the pinners at most `top`."""
    sums = {name: getattr(found, name) for name in _SUMS}
    tables = {name: records(getattr(found, name)) for name in _TABLES}
    for name in ("pinners", "pinners_by_line"):
        tables[name] = tables[name][:top]
    return {**sums, **tables}


def write_fragmentation(
    found: Fragmentation, blocks: pd.DataFrame, timeline: pd.DataFrame, screen: Screen, names: SiteNames, top: int
) -> None:
    """One device. blocks: all of its blocks at that position; timeline: that of the device."""
    free = f"{units.size(found.free_bytes)} free in {units.counted(len(found.sizes), 'piece')}"
    title = f"  {units.size(found.reserved_bytes)} reserved, {units.size(found.active_bytes)} active, {free}"
    screen.text(Text.assemble((found.device, "bold"), title), hanging=2)
    if found.reserved_bytes == 0:
        screen.text("Nothing is reserved here, or the allocator reports no segments (the CPU's never does).", 2)
        _over_time(found, timeline, screen)
        return
    returned = f"{units.size(found.releasable_bytes)} wholly free (empty_cache() returns it)"
    screen.text(f"{returned}, {units.size(found.stranded_bytes)} stranded next to live blocks.", 2)
    share = units.share(found.external_fragmentation, 1)
    screen.text(f"Largest free piece {units.size(found.largest_free_bytes)}: external fragmentation {share}.", 2)
    _over_time(found, timeline, screen)
    _pinners(found, screen, names, top)
    _classes(found.free_pieces, screen)
    _segments(found, blocks, screen, top)


def pinned(row: dict[str, Any], names: SiteNames) -> str:
    """What a line keeps from being reused, in a sentence or two. row: of `Fragmentation.pinners_by_line`."""
    count, amount = int(row["blocks"]), units.size(row["allocated_bytes"])
    subject = f"This {amount} block" if count == 1 else f"These {count:,} blocks ({amount})"
    keeps, alone = ("keeps", "It alone holds") if count == 1 else ("keep", "They alone hold")
    sentence = (
        f"{subject} from {names.site(site_of(row))} {keeps} {units.size(row['stranded_bytes'])} from being reused."
    )
    if row["alone_bytes"] < row["stranded_bytes"]:
        sentence += f" {alone} {units.size(row['alone_bytes'])} of it; other lines have blocks in the same segments."
    return sentence


def write_pinners(found: Fragmentation, screen: Screen, names: SiteNames, indent: int, top: int) -> None:
    """The first lines that pin a notable amount: what each does, its source and its age."""
    held = "mostly free mapping unit" if found.segments["is_expandable"].any() else "mostly free segment"
    for row in rows(_worth_saying(found).head(top)):
        screen.text(pinned(row, names), indent)
        source = names.source(site_of(row))
        if source:
            screen.source(source, indent + 2)
        screen.frames(names.stack(int(row["stack_id"])), indent + 2)
        born = "" if row["step"] is None else f", allocated in step {row['step']}"
        oldest = "" if row["blocks"] == 1 else "the oldest is "
        is_older = row["oldest_age_ns"] is None
        old = "from before the recording" if is_older else f"{units.duration(row['oldest_age_ns'] / 1e9)} old"
        age = f"{oldest}{old}{born}"
        where = units.counted(int(row["ranges"]), held)
        screen.text(f"{age}, in {where}", indent + 2, style="dim")


def _worth_saying(found: Fragmentation) -> Table:
    lines = found.pinners_by_line
    return lines.take(lines["stranded_bytes"] >= _WORTH_SAYING * found.reserved_bytes)


def _over_time(found: Fragmentation, timeline: pd.DataFrame, screen: Screen) -> None:
    """A chart, and where to look if fragmentation was much worse at another position."""
    known = timeline["external_fragmentation"].dropna()
    if known.empty:
        return
    levels = [round(value * 1000) for value in known]
    chart = units.sparkline(levels, max(min(screen.width - 32, 60), 10), plain=screen.plain)
    most = units.share(float(known.max()), 1)
    screen.text(Text.assemble("over the run  ", (chart, "green"), f"  at most {most}"), 2)
    # A value is that at the end of its interval, where the next begins; the last one is that at the end of the trace.
    stranded = timeline["stranded_bytes"].fillna(0).to_numpy(np.int64)[:-1]
    worst = int(stranded.argmax()) if len(stranded) else 0
    if len(stranded) and stranded[worst] > max(
        _MUCH_WORSE * found.stranded_bytes, _WORTH_SAYING * found.reserved_bytes
    ):
        times = timeline["time_ns"].to_numpy(np.int64)
        seconds = (times[worst + 1] - times[0]) / 1e9
        shows = f"--at {f'{seconds:.9f}'.rstrip('0')}s shows it"
        screen.text(f"The most was stranded at {units.duration(seconds)}: {units.size(stranded[worst])} ({shows}).", 2)


def _pinners(found: Fragmentation, screen: Screen, names: SiteNames, top: int) -> None:
    worth = _worth_saying(found)
    screen.blank()
    if not len(worth):
        screen.text(Text.assemble(("OK", "bold green"), "  No line of code pins mostly free segments."))
        return
    screen.text(Text.assemble((_LABEL, "bold yellow"), "  by live blocks in mostly free segments:"))
    write_pinners(found, screen, names, len(_LABEL) + 2, top)
    if len(worth) > top:
        rest = units.size(int(worth["stranded_bytes"][top:].sum()))
        more = units.counted(len(worth) - top, "more line")
        screen.text(f"and {more} with {rest} (--top 0 shows all)", len(_LABEL) + 2, style="dim")


def _classes(pieces: Table, screen: Screen) -> None:
    if not len(pieces):
        return
    screen.blank()
    screen.text(Text.assemble(("FREE PIECES", "bold"), "  by size"))
    width = max(min(screen.width - 48, 40), 4)
    for row in rows(pieces.take(pieces["pieces"] > 0)):
        sizes = f"{units.size(row['from_bytes']):>8} to {units.size(row['to_bytes']):>8}"
        count = f"{int(row['pieces']):>7,}"
        bar = units.bar(row["share"], width, plain=screen.plain)
        screen.text(Text.assemble(f"{sizes}  {count}  {units.size(row['free_bytes']):>9}  ", (bar, "green")), 2)


def _segments(found: Fragmentation, blocks: pd.DataFrame, screen: Screen, top: int) -> None:
    held = found.segments.take(found.segments["stranded_bytes"] > 0)
    if not len(held):
        return
    screen.blank()
    screen.text(Text.assemble(("SEGMENTS", "bold"), "  with the most stranded bytes"))
    for row in rows(held.take(np.argsort(-held["stranded_bytes"], kind="stable")).head(top)):
        write_segment(row, blocks[blocks["segment"] == row["address"]], screen)
    if len(held) > top:
        more = units.counted(len(held) - top, "more segment")
        screen.text(f"and {more} with stranded bytes (--top 0 shows all)", 2, style="dim")
