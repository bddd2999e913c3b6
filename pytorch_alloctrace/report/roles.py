"""What the memory is for, in a sentence."""

from __future__ import annotations

from ..analysis.usage.roles import RoleBytes, RoleShares
from ..reading.roles import UNKNOWN
from . import units

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
        return "What it is for is unknown: nothing in the trace says so."
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
