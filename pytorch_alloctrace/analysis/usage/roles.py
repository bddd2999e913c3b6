"""How much of the live memory is for what: parameters, activations and other roles.

csrc/core/replay/roles.h has the rules of roles, docs/roles.md explains them. A role is that of a block in its whole
life, so it does not depend on the position at which one asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...reading.names import UNKNOWN
from ...reading.recorded import RecordedTrace


@dataclass(frozen=True)
class RoleBytes:
    """What is live for one purpose. Bytes are requested bytes."""

    role: str
    """One of `reading.names.ROLES`."""
    bytes: int
    exact_bytes: int
    """Of these: where it was recorded. It was inferred for the others."""
    blocks: int


@dataclass(frozen=True)
class RoleShares:
    """What is live on a device, by role."""

    roles: tuple[RoleBytes, ...]
    """In the order of `reading.names.ROLES_SHOWN`, without those that no block has."""
    are_named: bool
    """Whether the program said of any block of the device what it is."""

    @property
    def are_known(self) -> bool:
        """Whether anything is known but that it is unknown."""
        return any(part.role != UNKNOWN for part in self.roles)


def roles_before(trace: RecordedTrace, device: str, until: int) -> RoleShares:
    """Return what is live on a device before event `until`, by role."""
    held = trace.replay.role_bytes(until, device)
    parts = tuple(RoleBytes(role, size, exact, blocks) for role, (size, exact, blocks) in held.items())
    return RoleShares(parts, are_named(trace, device))


def are_named(trace: RecordedTrace, device: str | None = None) -> bool:
    """Whether the program said of any block (of a device) what it is."""
    named = trace.replay.devices_with_names
    return bool(named) if device is None else device in named
