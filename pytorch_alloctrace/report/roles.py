"""Memory by role, as text."""

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

_PLURALS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "input": "inputs",
    "activation": "activations",
    "temporary": "temporaries",
    "library workspace": "library workspaces",
}
_MIN_SHARE = 0.01  # of the total; smaller roles are summed up
_MIN_KEPT_GRADIENTS = 2.0  # times the parameters


def roles_sentence(shares: RoleShares, total: int) -> str:
    """Return the main roles, such as "parameters 2.13 MiB, activations 768 KiB (inferred)"."""
    if not shares.are_known:
        return "Role unknown (not recorded)."
    named = [part for part in shares.roles if part.bytes >= _MIN_SHARE * total]
    unnamed_bytes = sum(part.bytes for part in shares.roles) - sum(part.bytes for part in named)
    parts = [_format_role(part) for part in named] + ([f"more {units.size(unnamed_bytes)}"] if unnamed_bytes else [])
    sentence = ", ".join(parts)
    if shares.gradients_per_parameter >= _MIN_KEPT_GRADIENTS:
        sentence += f"; {shares.gradients_per_parameter:.0f} times as many gradients as parameters: kept gradients"
    return sentence


def exactness(part: RoleBytes) -> str:
    """Return "exact", "inferred" or the exact share such as "80 % exact"; "" for an unknown role."""
    if part.role == UNKNOWN:
        return ""
    if not part.exact_bytes:
        return "inferred"
    return "exact" if part.exact_bytes == part.bytes else f"{units.share(part.exact_bytes, part.bytes)} exact"


def role_names(role: str) -> str:
    """Return the plural of a role, such as "activations"."""
    return _PLURALS.get(role, role)


def _format_role(part: RoleBytes) -> str:
    exactness_text = exactness(part)
    note = f" ({exactness_text})" if exactness_text not in ("", "exact") else ""
    return f"{role_names(part.role)} {units.size(part.bytes)}{note}"


_SIZE_WIDTH = 10
_ROLE_WIDTH = 18


def write_role_totals(table: pd.DataFrame, span: Span, screen: Screen) -> None:
    if table.empty:
        screen.text("Nothing was allocated.")
        return
    if "live_bytes_change" in table:
        sections = [
            ("ALLOCATED", f"{span}, including what was freed again", "total_bytes", _describe_allocated),
            ("CHANGED", f"{span}: how much more is live", "live_bytes_change", _describe_live),
        ]
    else:
        sections = [
            ("LIVE", f"at {span.until}", "live_bytes", _describe_live),
            ("ALLOCATED", f"up to {span.until}, including what was freed again", "total_bytes", _describe_allocated),
        ]
    has_section = False
    for label, title, column, note in sections:
        section_rows = table[table[column] != 0]
        if section_rows.empty:
            continue
        if has_section:
            screen.blank()
        has_section = True
        screen.text(Text.assemble((label, "bold"), f"  {title}"), hanging=len(label) + 2)
        _write_section(section_rows, column, note, screen)


def _write_section(table: pd.DataFrame, column: str, note: Callable[[dict[str, Any]], str], screen: Screen) -> None:
    largest = int(table[column].abs().max())
    for row in rows(table):
        size = units.change(row[column]) if column == "live_bytes_change" else units.size(row[column])
        bar = units.bar(abs(row[column]) / largest, ENTRY_BAR, plain=screen.plain)
        name = f"  {row['role']:{_ROLE_WIDTH}}{note(row)}"
        screen.text(Text.assemble(f"{size:>{_SIZE_WIDTH}}  ", (f"{bar:{ENTRY_BAR}}", "green"), name))


def _describe_live(row: dict[str, Any]) -> str:
    blocks = units.counted(int(row["live_blocks"]), "block")
    return f"to {units.size(row['live_bytes'])} in {blocks}" if "live_bytes_change" in row else blocks


def _describe_allocated(row: dict[str, Any]) -> str:
    exactness_text = exactness(RoleBytes(row["role"], row["total_bytes"], row["exact_bytes"], row["allocations"]))
    return ", ".join(filter(None, [units.counted(int(row["allocations"]), "allocation"), exactness_text]))
