"""How much was allocated for what, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
from rich.text import Text

from ..analysis.usage.roles import RoleBytes
from . import units
from .roles import exactness
from .screen import ENTRY_BAR, Screen
from .span import Span
from .tables import rows

_SIZE = 10
_ROLE = 18


def write_role_totals(table: pd.DataFrame, span: Span, screen: Screen) -> None:
    """What is live or, of ranges, how that changed; and what was allocated."""
    if table.empty:
        screen.text("Nothing was allocated.")
        return
    if "live_bytes_change" in table:
        sections = [
            ("ALLOCATED", f"{span}, including what was freed again", "total_bytes", _allocated),
            ("CHANGED", f"{span}: how much more is live", "live_bytes_change", _live),
        ]
    else:
        sections = [
            ("LIVE", f"at {span.until}", "live_bytes", _live),
            ("ALLOCATED", f"up to {span.until}, including what was freed again", "total_bytes", _allocated),
        ]
    written = False
    for label, title, column, note in sections:
        own = table[table[column] != 0]
        if own.empty:
            continue
        if written:
            screen.blank()
        written = True
        screen.text(Text.assemble((label, "bold"), f"  {title}"), hanging=len(label) + 2)
        _write(own, column, note, screen)


def _write(table: pd.DataFrame, column: str, note: Callable[[dict[str, Any]], str], screen: Screen) -> None:
    most = int(table[column].abs().max())
    for row in rows(table):
        size = units.change(row[column]) if column == "live_bytes_change" else units.size(row[column])
        bar = units.bar(abs(row[column]) / most, ENTRY_BAR, plain=screen.plain)
        name = f"  {row['role']:{_ROLE}}{note(row)}"
        screen.text(Text.assemble(f"{size:>{_SIZE}}  ", (f"{bar:{ENTRY_BAR}}", "green"), name))


def _live(row: dict[str, Any]) -> str:
    blocks = units.counted(int(row["live_blocks"]), "block")
    return f"to {units.size(row['live_bytes'])} in {blocks}" if "live_bytes_change" in row else blocks


def _allocated(row: dict[str, Any]) -> str:
    known = exactness(RoleBytes(row["role"], row["total_bytes"], row["exact_bytes"], row["allocations"]))
    return ", ".join(filter(None, [units.counted(int(row["allocations"]), "allocation"), known]))
