"""Names of event kinds, devices and roles, which a trace stores as numbers; and counted nouns."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import TraceError

KINDS = (
    "none",
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "step",
    "mark",
    "region_begin",
    "region_end",
    "lost",
    "raw",
    "role",
    "memory",
    "config",
    "no_split",
    "state_segment",
    "state_block",
    "latency",
    "empty_cache",
    "stream_use",
    "allocator_state",
    "pool_restore",
    "pool_use",
    "pool_allocator",
    "pool_release",
    "memory_fraction",
    "pool_on_oom",
    "capture",
    "garbage_collection",
)
"""Event kinds by number, as in csrc/core/format/event.h, in torch's words (``TraceEntry::Action``) where torch has one.
Only `finish` writes "none"."""

STEP, MARK, REGION_BEGIN, REGION_END = (KINDS.index(name) for name in ("step", "mark", "region_begin", "region_end"))

_DEVICE_TYPES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps", 1000: "pinned"}
"""Names by c10::DeviceType; 1000, not a type of torch, is pinned host memory."""


HOST_DEVICES = ("cpu", "pinned")
"""Devices whose memory is that of the machine; all others are GPUs."""


def device_name(device_type: int, device_index: int) -> str:
    """Return the name of a device in torch's spelling ("cpu", "cuda:0"), or "pinned"."""
    name = _DEVICE_TYPES.get(device_type, f"device{device_type}")
    return name if name in HOST_DEVICES else f"{name}:{device_index}"


def named_device(name: str, devices: Sequence[str]) -> str:
    """Return the device of this name; "cuda" is the only CUDA device. Raises TraceError for other names."""
    if name in devices:
        return name
    same_type = [device for device in devices if device.startswith(f"{name}:")]
    if len(same_type) == 1:
        return same_type[0]
    if same_type:
        raise TraceError(f"{name!r} matches {len(same_type)} devices: name one of {', '.join(same_type)}")
    raise TraceError(f"no device {name!r} was recorded, only {', '.join(devices) or 'none'}")


def kind_name(number: int) -> str:
    """Return the name of an event kind; "kind_NN" for a kind of a newer recorder."""
    return KINDS[number] if number < len(KINDS) else f"kind_{number}"


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
"""Roles by number; same order as csrc/core/format/event.h."""

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
"""Roles in the order of tables."""
BEFORE_RECORDING = "before the recording"
NO_STACK = "(no Python stack)"


def counted(count: int, noun: str) -> str:
    """Pluralise a counted noun: "1 step", "5,662 events"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
