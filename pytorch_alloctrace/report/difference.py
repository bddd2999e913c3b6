"""Changes between two positions or two runs, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.text import Text

from ..analysis.limit import GrowthLimit
from ..analysis.usage.comparison import GONE, NEW
from ..analysis.usage.matching import NEAR
from ..analysis.usage.peak_move import PeakAllocation, PeakMove
from ..reading.sites import Frame, Site, groups_stacks
from . import units
from .screen import ENTRY_BAR, Screen
from .site_names import SiteNames, frames_data
from .tables import by_word, records, rows, site_of

_CHANGE_WIDTH = 10
_MAX_PERCENT_RATIO = 10  # a change of more than ten times the bytes before is not written in percent
_LABELS = {1: ("MORE", "bold yellow"), -1: ("LESS", "bold green"), 0: ("SAME", "bold green")}


@dataclass(frozen=True)
class Changes:
    """Changes on one device from `before` to `after`: positions or runs, as text."""

    device: str
    before: str
    after: str
    by: str
    table: pd.DataFrame
    """Result of `Trace.diff` or `compare`."""
    frames: Callable[[dict[str, Any]], Sequence[Frame]] | None = None
    """Function that returns the frames of a row's stack; None: write no stacks."""
    steps: int = 0
    """Number of steps that ended in between; 0 for two runs."""
    peak_move: PeakMove | None = None
    """Move of the peak between two runs that are compared at their peaks."""

    @property
    def bytes_before(self) -> int:
        return int(self.table["live_bytes_before"].sum())

    @property
    def bytes_after(self) -> int:
        return int(self.table["live_bytes_after"].sum())

    @property
    def change(self) -> int:
        return self.bytes_after - self.bytes_before

    @property
    def per_step(self) -> float | None:
        return self.change / self.steps if self.steps else None


def changes_data(changes: Changes, top: int) -> dict[str, Any]:
    row_records = records(changes.table.head(top))
    if changes.frames is not None:
        row_records = [{**row, "frames": frames_data(changes.frames(row))} for row in row_records]
    return {
        "device": changes.device,
        "before": changes.before,
        "after": changes.after,
        "live_bytes_before": changes.bytes_before,
        "live_bytes_after": changes.bytes_after,
        "change_bytes": changes.change,
        "by": changes.by,
        "changes": row_records,
    }


def grew_sentence(changes: Changes, limit: GrowthLimit) -> str:
    rate = f", {units.rate(changes.per_step, 'step')}" if limit.per_step and changes.per_step is not None else ""
    share = f" ({units.share(changes.change, changes.bytes_before)})" if limit.share is not None else ""
    amount = f"{units.size(changes.change)}{share}{rate}"
    return f"{changes.device} grew by {amount}: more than {limit.text} (--fail-above)"


def amount_of(changes: Changes) -> str:
    """Return "+6.00 MiB requested (2.00 MiB to 8.00 MiB, 300 %)", or the live bytes if nothing changed."""
    if not changes.change:
        return f"{units.size(changes.bytes_after)} requested"
    has_percent = changes.bytes_before and abs(changes.change) <= _MAX_PERCENT_RATIO * changes.bytes_before
    percent = f", {units.share(abs(changes.change), changes.bytes_before)}" if has_percent else ""
    return (
        f"{units.change(changes.change)} requested "
        f"({units.size(changes.bytes_before)} to {units.size(changes.bytes_after)}{percent})"
    )


def label_of(changes: Changes) -> tuple[str, str]:
    """Return "MORE", "LESS" or "SAME", and its style."""
    return _LABELS[(changes.change > 0) - (changes.change < 0)]


def write_changes(changes: Changes, screen: Screen, names: SiteNames, top: int) -> None:
    """Write the sums, then the `top` rows that changed most."""
    label, style = label_of(changes)
    amount = amount_of(changes)
    screen.text(Text.assemble((label, style), f"  {changes.device}: ", (amount, "bold")), hanging=len(label) + 2)
    screen.text(f"from {changes.before} to {changes.after}", len(label) + 2)
    changed_rows = changes.table[changes.table["change_bytes"] != 0]
    largest_change = int(changed_rows["change_bytes"].abs().max()) if len(changed_rows) else 0
    if changes.peak_move is not None and len(changed_rows):
        screen.text(peak_move_sentence(changes.peak_move, changes.by, names))
    equal_maxima = changes.peak_move.equal_maxima if changes.peak_move is not None and changes.by == "line" else {}
    listed_rows = changed_rows.head(top)
    for number, row in zip(listed_rows.index, rows(listed_rows), strict=True):
        _write_row(row, changes, largest_change, equal_maxima.get(number), screen, names)
    omitted = changed_rows.iloc[top:]
    if len(omitted):
        omitted_count = units.counted(len(omitted), f"more {by_word(changes.by)}")
        amount = units.change(int(omitted["change_bytes"].sum()))
        screen.text(f"{amount:>{_CHANGE_WIDTH}}  in {omitted_count} (--top 0 shows all)", style="dim")
    unchanged_rows = len(changes.table) - len(changed_rows)
    if unchanged_rows and len(changed_rows):
        unchanged_bytes = int(changes.table.loc[changes.table["change_bytes"] == 0, "live_bytes_after"].sum())
        screen.text(
            f"{units.counted(unchanged_rows, by_word(changes.by))} with {units.size(unchanged_bytes)} did not change.",
            style="dim",
        )


def peak_move_sentence(move: PeakMove, by: str, names: SiteNames) -> str:
    """Return the sentence on the allocations of the two peaks, and that rows (`by`) are compared at them."""
    before, after = (_describe_peak(allocation, names) for allocation in (move.before, move.after))
    if before == after:
        before, after = (
            f"{place}: {names.source(allocation.site)}"
            for place, allocation in ((before, move.before), (after, move.after))
        )
    compared = f"{by_word(by).capitalize()}s are compared at these two moments."
    return f"The peak moved: before it was in {before}, now in {after}. {compared}"


def _describe_peak(allocation: PeakAllocation, names: SiteNames) -> str:
    return f"{'the backward of ' if allocation.backward else ''}{names.site(allocation.site)}"


def _write_row(
    row: dict[str, Any],
    changes: Changes,
    largest_change: int,
    equal_maximum: int | None,
    screen: Screen,
    names: SiteNames,
) -> None:
    sizes = f"{units.size(row['live_bytes_before'])} to {units.size(row['live_bytes_after'])}"
    if equal_maximum is not None:
        sizes += f"; at most {units.size(equal_maximum)} in both"
    bar = units.bar(abs(row["change_bytes"]) / max(largest_change, 1), ENTRY_BAR, plain=screen.plain)
    name, source = row_name(row, changes.by, names)
    frames = [names.site(frame) for frame in changes.frames(row)] if changes.frames is not None else []
    screen.entry(
        units.change(row["change_bytes"]), f"{name} ({sizes})", source, 0, _CHANGE_WIDTH, bar=bar, frames=frames
    )


def row_name(row: dict[str, Any], by: str, names: SiteNames) -> tuple[str, str | None]:
    """Return the name of a row with its change of line, and its source."""
    if not groups_stacks(by):
        return str(row[by]), None
    if "match" not in row:
        site = site_of(row)
        return names.site(site), names.source(site)
    if row["match"] in (NEW, GONE):
        site = _site_at(row, "after" if row["match"] == NEW else "before")
        return f"{names.site(site)}, {row['match']}", names.source(site)
    before, after = _site_at(row, "before"), _site_at(row, "after")
    source = names.source(before) if row["match"] == NEAR else None
    moved = f"moved{' and changed' if source else ''} from {names.site(before)}"
    note = moved if row["moved"] else f"was line {before.line}"
    if row["moved"] or source or before.line != after.line:
        return f"{names.site(after)}, {note}{f': {source}' if source else ''}", names.source(after)
    return names.site(after), names.source(after)


def _site_at(row: dict[str, Any], side: str) -> Site:
    """Return the site of a row of two runs "before" or "after"."""
    names = ("filename", "function", "line", "source") if side == "before" else ("line", "source")
    return site_of({**row, **{name: row[f"{name}_{side}"] for name in names}})
