"""Live memory by role. A block has one role for its lifetime (rules: csrc/core/replay/roles.h, docs/roles.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...reading.names import ROLES, UNKNOWN
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, StackIndex, bytes_by_stack
from ...reading.table import Table


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


def find_model_line(stacks: StackIndex, live: Table) -> Site | None:
    """Return the line that built the model or moved it to the device: the one with the most bytes of parameters.

    Of a model that was built on the device, it is the line that called the outermost constructor.

    Args:
        stacks: Stacks of the trace.
        live: Live blocks, as of `Replay.live`.
    """
    parameters = live.take(live["role"] == ROLES.index("parameter"))
    bytes_by_line: dict[Frame, int] = {}
    for stack, size in bytes_by_stack(parameters["stack_id"], parameters["requested_bytes"]).items():
        frames = stacks.frames(stack) if stacks.has_frames(stack) else []
        line = _find_building_frame(stacks, stack, frames)
        if line is not None:
            bytes_by_line[line] = bytes_by_line.get(line, 0) + size
    if not bytes_by_line:
        return None
    frame = max(bytes_by_line, key=bytes_by_line.__getitem__)
    return Site(frame.filename, frame.line, frame.function, frame.source, user=True)


def _find_building_frame(stacks: StackIndex, stack: int, frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of user code outside of all constructors of modules."""
    line, node = None, stack
    for frame in frames:  # innermost first
        class_name, separator, _ = frame.function.rpartition(".__init__")
        if separator and class_name.rpartition(".")[2] in stacks.module_classes:
            line = None
        elif line is None and stacks.is_user[node]:
            line = frame
        node = int(stacks.parent[node])
    return line
