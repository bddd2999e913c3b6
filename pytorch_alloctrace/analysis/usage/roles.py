"""Live memory by role. A block has one role for its lifetime (rules: csrc/core/replay/roles.h, docs/roles.md)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...reading.names import ROLES, UNKNOWN
from ...reading.recorded import RecordedTrace
from ...reading.sites import Frame, Site, SiteBytes, StackIndex, bytes_by_stack, sites_of_blocks, top_sites
from ...reading.table import Table

_MOVE = "torch/nn/modules/module.py", "_apply"
"""File and function of torch that moves the layers of a model, as `to` and `cuda` do."""
_TRAINER = "transformers/trainer.py", ""
"""File of transformers' Trainer; any function."""
_MIN_ITERATIONS = 16
"""Minimum number of live blocks of a stack for a loop."""
_MANY_AT_ONCE = re.compile(r"torch[/\\](jit|_dynamo|_inductor|_functorch|nn[/\\]modules[/\\](rnn|module)\.py$)")
"""Files of torch whose calls may make many activations without a loop in Python: scripted modules and RNNs, too."""


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


@dataclass(frozen=True)
class ModelOrigin:
    """Where the model with the most bytes of parameters comes from."""

    line: Site | None
    """Line that built the model or moved it to the device; None if unknown."""
    is_moved: bool
    """True if the line moved the model; it may have built the model, too."""
    is_in_trainer: bool
    """True if transformers' Trainer called the code that allocated live activations."""
    main_module: str = ""
    """Class of the outermost module whose calls allocated half of the live activations, if it has no parameters and
    the line is therefore unknown, as of a loss; else ""."""
    loop_line: SiteBytes | None = None
    """Line with the most live activations, if a loop within the forward runs it; else None."""


def roles_before(trace: RecordedTrace, device: str, until: int) -> RoleShares:
    bytes_by_role = trace.replay.role_bytes(until, device)
    parts = tuple(RoleBytes(role, size, exact, blocks) for role, (size, exact, blocks) in bytes_by_role.items())
    return RoleShares(parts, are_named(trace, device))


def are_named(trace: RecordedTrace, device: str | None = None) -> bool:
    """Return True if the program named the role of any block (of a device)."""
    named_devices = trace.replay.devices_with_names
    return bool(named_devices) if device is None else device in named_devices


def find_model_origin(trace: RecordedTrace, live: Table) -> ModelOrigin:
    """Return the line with the most bytes of parameters, which built the model or moved it to the device.

    Of a model that was built on the device, it is the line that called the outermost constructor. If half of the
    activations are of one model, and object scans found whose the parameters are, only those of this model count.

    Args:
        trace: Trace.
        live: Live blocks, as of `Replay.live`.
    """
    stacks = trace.stacks
    parameters = live.take(live["role"] == ROLES.index("parameter"))
    activations = live.take(live["role"] == ROLES.index("activation"))
    main_module = _find_main_module(stacks, activations)
    if main_module:
        modules = trace.block_modules(parameters["address"].tolist(), parameters["alloc_seq"].tolist())
        owners = np.array([stacks.modules.owned_name(module, 1) for module in modules], dtype=object)
        if (owners != "").any():
            parameters = parameters.take(owners == main_module)
    bytes_by_line = sum_by_building_line(stacks, parameters)
    loop_line = _find_loop_line(stacks, activations)
    is_in_trainer = any(
        _is_frame_of(frame, *_TRAINER)
        for stack in np.unique(activations["stack_id"]).tolist()
        if stacks.has_frames(stack)
        for frame in stacks.frames(stack)
    )
    if not bytes_by_line:
        return ModelOrigin(None, False, is_in_trainer, main_module, loop_line)
    site, is_moved = max(bytes_by_line, key=bytes_by_line.__getitem__)
    return ModelOrigin(site, is_moved, is_in_trainer, loop_line=loop_line)


def _find_main_module(stacks: StackIndex, activations: Table) -> str:
    """Return the outermost module whose calls allocated half of the activations; "" if there is none."""
    if not stacks.has_modules:
        return ""
    by_module: dict[str, int] = {}
    for stack, size in bytes_by_stack(activations["stack_id"], activations["requested_bytes"]).items():
        name = next(iter(stacks.modules.parts(stack)), "")
        by_module[name] = by_module.get(name, 0) + size
    main_module = max(by_module, key=by_module.__getitem__, default="")
    return main_module if 2 * by_module.get(main_module, 0) >= sum(by_module.values()) else ""


def _find_loop_line(stacks: StackIndex, activations: Table) -> SiteBytes | None:
    """Return the line with the most activations of stacks with `_MIN_ITERATIONS` blocks each, if these are half of all.

    The layers of a model are no loop: their stacks differ in the module, so None without modules. Nor is a call that
    makes many activations at once, as of a compiled model.
    """
    if not stacks.has_modules:
        return None
    ids, of_row, counts = np.unique(activations["stack_id"], return_inverse=True, return_counts=True)
    is_repeated = [
        count >= _MIN_ITERATIONS
        and stacks.has_frames(stack)
        and not _MANY_AT_ONCE.search(stacks.frames(stack)[0].filename)
        for stack, count in zip(ids.tolist(), counts.tolist(), strict=True)
    ]
    repeated = activations.take(np.array(is_repeated, np.bool_)[of_row])
    if 2 * int(repeated["requested_bytes"].sum()) < int(activations["requested_bytes"].sum()):
        return None
    return next(iter(top_sites(stacks, sites_of_blocks(stacks, repeated), 1)), None)


def sum_by_building_line(stacks: StackIndex, blocks: Table) -> dict[tuple[Site, bool], int]:
    """Return the requested bytes of parameters by the line that built their model, and whether it moved the model."""
    bytes_by_line: dict[tuple[Site, bool], int] = {}
    for stack, size in bytes_by_stack(blocks["stack_id"], blocks["requested_bytes"]).items():
        frames = stacks.frames(stack) if stacks.has_frames(stack) else []
        line = _find_building_frame(stacks, stack, frames)
        if line is not None:
            site = Site(line.filename, line.line, line.function, line.source, user=True)
            key = site, any(_is_frame_of(frame, *_MOVE) for frame in frames)
            bytes_by_line[key] = bytes_by_line.get(key, 0) + size
    return bytes_by_line


def _is_frame_of(frame: Frame, file: str, function: str) -> bool:
    return frame.filename.replace("\\", "/").endswith(file) and frame.function.endswith(function)


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
