"""Free pieces, and the lines of code that pin them, as text and as JSON (fields: docs/json.md)."""

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
_MIN_STRANDED_SHARE = 0.01  # of the reserved bytes, to name a line or another position
_MIN_WORSE_RATIO = 2  # of the stranded bytes, to name another position


def fragmentation_data(fragmentation: Fragmentation, top: int) -> dict[str, Any]:
    sums = {name: getattr(fragmentation, name) for name in _SUMS}
    tables = {name: records(getattr(fragmentation, name)) for name in _TABLES}
    for name in ("pinners", "pinners_by_line"):
        tables[name] = tables[name][:top]
    return {**sums, **tables}


def write_fragmentation(
    fragmentation: Fragmentation,
    blocks: pd.DataFrame,
    timeline: pd.DataFrame,
    screen: Screen,
    names: SiteNames,
    top: int,
) -> None:
    """Write the fragmentation of one device; `blocks` are all its blocks at that position."""
    free = f"{units.size(fragmentation.free_bytes)} free in {units.counted(len(fragmentation.sizes), 'piece')}"
    reserved, active = units.size(fragmentation.reserved_bytes), units.size(fragmentation.active_bytes)
    title = f"  {reserved} reserved, {active} active, {free}"
    screen.text(Text.assemble((fragmentation.device, "bold"), title), hanging=2)
    if fragmentation.reserved_bytes == 0:
        screen.text("Nothing is reserved here, or the allocator reports no segments (the CPU's never does).", 2)
        _write_over_time(fragmentation, timeline, screen)
        return
    of_pools = fragmentation.releasable_bytes_of_pools
    returned = (
        "returns it" if not of_pools else f"returns {units.size(fragmentation.releasable_bytes - of_pools)} of it"
    )
    exception = "" if not of_pools else ": the rest is in private pools, of CUDA graphs or MemPools, while they exist"
    releasable = f"{units.size(fragmentation.releasable_bytes)} wholly free (empty_cache() {returned}{exception})"
    screen.text(f"{releasable}, {units.size(fragmentation.stranded_bytes)} stranded next to live blocks.", 2)
    share = units.share(fragmentation.external_fragmentation, 1)
    screen.text(
        f"Largest free piece {units.size(fragmentation.largest_free_bytes)}: external fragmentation {share}.", 2
    )
    _write_over_time(fragmentation, timeline, screen)
    _write_pinner_section(fragmentation, screen, names, top)
    _write_size_classes(fragmentation.free_pieces, screen)
    _write_segments(fragmentation, blocks, screen, top)


def describe_pinner(row: dict[str, Any], names: SiteNames) -> str:
    """Describe the memory that a line (a row of `Fragmentation.pinners_by_line`) keeps from being reused."""
    count, amount = int(row["blocks"]), units.size(row["allocated_bytes"])
    subject = f"This {amount} block" if count == 1 else f"These {count:,} blocks ({amount})"
    verb, alone = ("keeps", "It alone holds") if count == 1 else ("keep", "They alone hold")
    sentence = (
        f"{subject} from {names.site(site_of(row))} {verb} {units.size(row['stranded_bytes'])} from being reused."
    )
    if row["alone_bytes"] < row["stranded_bytes"]:
        sentence += f" {alone} {units.size(row['alone_bytes'])} of it; other lines have blocks in the same segments."
    return sentence


def write_pinners(fragmentation: Fragmentation, screen: Screen, names: SiteNames, indent: int, top: int) -> None:
    """Write the first `top` lines that pin a notable amount, with source and age."""
    noun = "mostly free mapping unit" if fragmentation.segments["is_expandable"].any() else "mostly free segment"
    for row in rows(_select_pinners(fragmentation).head(top)):
        screen.text(describe_pinner(row, names), indent)
        quoted_source = names.source(site_of(row))
        if quoted_source:
            screen.source(quoted_source, indent + 2)
        screen.frames(names.stack(int(row["stack_id"])), indent + 2)
        step_suffix = "" if row["step"] is None else f", allocated in step {row['step']}"
        oldest_prefix = "" if row["blocks"] == 1 else "the oldest is "
        is_preexisting = row["oldest_age_ns"] is None
        age = "from before the recording" if is_preexisting else f"{units.duration(row['oldest_age_ns'] / 1e9)} old"
        age = f"{oldest_prefix}{age}{step_suffix}"
        range_count = units.counted(int(row["ranges"]), noun)
        screen.text(f"{age}, in {range_count}", indent + 2, style="dim")


def _select_pinners(fragmentation: Fragmentation) -> Table:
    lines = fragmentation.pinners_by_line
    return lines.take(lines["stranded_bytes"] >= _MIN_STRANDED_SHARE * fragmentation.reserved_bytes)


def _write_over_time(fragmentation: Fragmentation, timeline: pd.DataFrame, screen: Screen) -> None:
    """Write a chart, and the position at which fragmentation was much worse."""
    shares = timeline["external_fragmentation"].dropna()
    if shares.empty:
        return
    levels = [round(fraction * 1000) for fraction in shares]
    chart = units.sparkline(levels, max(min(screen.width - 32, 60), 10), plain=screen.plain)
    highest_share = units.share(float(shares.max()), 1)
    screen.text(Text.assemble("over the run  ", (chart, "green"), f"  at most {highest_share}"), 2)
    # A row has the time at which its interval begins, and the bytes at its end: that time is in the next row.
    stranded = timeline["stranded_bytes"].fillna(0).to_numpy(np.int64)[:-1]
    worst_row = int(stranded.argmax()) if len(stranded) else 0
    if len(stranded) and stranded[worst_row] > max(
        _MIN_WORSE_RATIO * fragmentation.stranded_bytes, _MIN_STRANDED_SHARE * fragmentation.reserved_bytes
    ):
        times = timeline["time_ns"].to_numpy(np.int64)
        seconds = (times[worst_row + 1] - times[0]) / 1e9
        command = f"--at {f'{seconds:.9f}'.rstrip('0')}s shows it"
        screen.text(
            f"The most was stranded at {units.duration(seconds)}: {units.size(stranded[worst_row])} ({command}).", 2
        )


def _write_pinner_section(fragmentation: Fragmentation, screen: Screen, names: SiteNames, top: int) -> None:
    pinners = _select_pinners(fragmentation)
    screen.blank()
    if not len(pinners):
        screen.text(Text.assemble(("OK", "bold green"), "  No line of code pins mostly free segments."))
        return
    screen.text(Text.assemble((_LABEL, "bold yellow"), "  by live blocks in mostly free segments:"))
    write_pinners(fragmentation, screen, names, len(_LABEL) + 2, top)
    if len(pinners) > top:
        omitted_size = units.size(int(pinners["stranded_bytes"][top:].sum()))
        omitted_count = units.counted(len(pinners) - top, "more line")
        screen.text(f"and {omitted_count} with {omitted_size} (--top 0 shows all)", len(_LABEL) + 2, style="dim")


def _write_size_classes(pieces: Table, screen: Screen) -> None:
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


def _write_segments(fragmentation: Fragmentation, blocks: pd.DataFrame, screen: Screen, top: int) -> None:
    stranded = fragmentation.segments.take(fragmentation.segments["stranded_bytes"] > 0)
    if not len(stranded):
        return
    screen.blank()
    screen.text(Text.assemble(("SEGMENTS", "bold"), "  with the most stranded bytes"))
    for row in rows(stranded.take(np.argsort(-stranded["stranded_bytes"], kind="stable")).head(top)):
        write_segment(row, blocks[blocks["segment"] == row["address"]], screen)
    if len(stranded) > top:
        omitted_count = units.counted(len(stranded) - top, "more segment")
        screen.text(f"and {omitted_count} with stranded bytes (--top 0 shows all)", 2, style="dim")
