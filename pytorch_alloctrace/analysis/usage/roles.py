"""Live memory by role: parameters, activations and others.

csrc/core/replay/roles.h has the rules of roles, docs/roles.md explains them. A role is that of a block over its whole
lifetime, so it does not depend on the position.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...reading.names import UNKNOWN
from ...reading.recorded import RecordedTrace


@dataclass(frozen=True)
class RoleBytes:
    """Live memory of one role. Requested bytes."""

    role: str
    """One of `reading.names.ROLES`."""
    bytes: int
    exact_bytes: int
    """Part of `bytes` whose role was recorded; the role of the rest is inferred."""
    blocks: int


@dataclass(frozen=True)
class RoleShares:
    """Live memory of a device by role."""

    roles: tuple[RoleBytes, ...]
    """Roles that some block has, in the order of `reading.names.ROLES_SHOWN`."""
    are_named: bool
    """True if the program named the role of any block of the device."""

    @property
    def are_known(self) -> bool:
        """True if some role is not unknown."""
        return any(part.role != UNKNOWN for part in self.roles)


def roles_before(trace: RecordedTrace, device: str, until: int) -> RoleShares:
    """Return the live memory of a device before event `until`, by role."""
    bytes_by_role = trace.replay.role_bytes(until, device)
    parts = tuple(RoleBytes(role, size, exact, blocks) for role, (size, exact, blocks) in bytes_by_role.items())
    return RoleShares(parts, are_named(trace, device))


def are_named(trace: RecordedTrace, device: str | None = None) -> bool:
    """Return True if the program named the role of any block (of a device)."""
    named_devices = trace.replay.devices_with_names
    return bool(named_devices) if device is None else device in named_devices
