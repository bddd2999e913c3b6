"""Live memory by role. A block has one role for its lifetime (rules: csrc/core/replay/roles.h, docs/roles.md)."""

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
    """Part of `bytes` whose role was recorded, not inferred."""
    blocks: int


@dataclass(frozen=True)
class RoleShares:
    roles: tuple[RoleBytes, ...]
    """Roles that some block has, in the order of `reading.names.ROLES_SHOWN`."""
    are_named: bool
    """True if the program named the role of any block of the device."""

    @property
    def gradients_per_parameter(self) -> float:
        """Bytes of gradients by bytes of parameters; 0 if either is unknown."""
        parameters, gradients = (
            sum(part.bytes for part in self.roles if part.role == role) for role in ("parameter", "gradient")
        )
        return gradients / parameters if parameters else 0.0

    @property
    def are_known(self) -> bool:
        return any(part.role != UNKNOWN for part in self.roles)


def roles_before(trace: RecordedTrace, device: str, until: int) -> RoleShares:
    bytes_by_role = trace.replay.role_bytes(until, device)
    parts = tuple(RoleBytes(role, size, exact, blocks) for role, (size, exact, blocks) in bytes_by_role.items())
    return RoleShares(parts, are_named(trace, device))


def are_named(trace: RecordedTrace, device: str | None = None) -> bool:
    """Return True if the program named the role of any block (of a device)."""
    named_devices = trace.replay.devices_with_names
    return bool(named_devices) if device is None else device in named_devices
