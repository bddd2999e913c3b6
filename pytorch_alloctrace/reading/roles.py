"""What blocks are for: the names of the roles. csrc/core/replay/roles.h decides which block has which."""

from __future__ import annotations

ROLES = (
    "unknown",
    "parameter",
    "buffer",
    "gradient",
    "optimizer state",
    "input",
    "activation",
    "temporary",
    "library workspace",
    "other",
)
"""By number; same order as csrc/core/format/event.h."""

UNKNOWN = ROLES[0]

ROLES_SHOWN = (
    "parameter",
    "buffer",
    "optimizer state",
    "gradient",
    "activation",
    "input",
    "temporary",
    "library workspace",
    "other",
    "unknown",
)
"""In the order in which tables have them."""
