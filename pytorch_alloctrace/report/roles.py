"""Roles as text: whether a role was recorded or inferred, and how much was allocated for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..analysis.usage.roles import RoleBytes, RoleShares
from ..reading.names import UNKNOWN
from . import units
from .screen import ENTRY_BAR, Screen
from .tables import rows
from .units import Span

if TYPE_CHECKING:
    import pandas as pd

_MANY = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "input": "inputs",
    "activation": "activations",
    "temporary": "temporaries",
    "library workspace": "library workspaces",
}
_LEAST_SHARE = 0.01
"""What is less is summed up."""


def roles_sentence(shares: RoleShares, total: int) -> str:
    """All roles that have a share worth a mention: "parameters 2.13 MiB, activations 768 KiB (inferred)"."""
    if not shares.are_known:
        return "Role unknown (not recorded)."
    shown = [part for part in shares.roles if part.bytes >= _LEAST_SHARE * total]
    rest = sum(part.bytes for part in shares.roles) - sum(part.bytes for part in shown)
    parts = [_part(part) for part in shown] + ([f"more {units.size(rest)}"] if rest else [])
    return ", ".join(parts)


def exactness(part: RoleBytes) -> str:
    """Whether the role was recorded: "exact", "inferred" or the share of what is exact; "" where it is unknown."""
    if part.role == UNKNOWN:
        return ""
    if not part.exact_bytes:
        return "inferred"
    return "exact" if part.exact_bytes == part.bytes else f"{units.share(part.exact_bytes, part.bytes)} exact"


def _part(part: RoleBytes) -> str:
    known = exactness(part)
    note = f" ({known})" if known not in ("", "exact") else ""
    return f"{_MANY.get(part.role, part.role)} {units.size(part.bytes)}{note}"


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
