"""Names of what a trace holds as numbers: event kinds, devices, roles; and counted nouns."""

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
)
"""Event kinds by number; torch's own words (``TraceEntry::Action``) where torch has one. Same order as
csrc/core/format/event.h; "none" is written by `finish` alone."""

STEP, MARK, REGION_BEGIN, REGION_END = (KINDS.index(name) for name in ("step", "mark", "region_begin", "region_end"))

_DEVICE_TYPES = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps", 1000: "pinned"}
"""c10::DeviceType numbers with a name here, and pinned host memory, which has none in torch."""


def device_name(device_type: int, device_index: int) -> str:
    """Torch's own spelling: "cpu", "cuda:0"; and "pinned"."""
    name = _DEVICE_TYPES.get(device_type, f"device{device_type}")
    return name if name in ("cpu", "pinned") else f"{name}:{device_index}"


def named_device(name: str, known: Sequence[str]) -> str:
    """One of the known devices; "cuda" stands for the only CUDA device. Raises TraceError for any other."""
    if name in known:
        return name
    same_type = [one for one in known if one.startswith(f"{name}:")]
    if len(same_type) == 1:
        return same_type[0]
    if same_type:
        raise TraceError(f"{name!r} is {len(same_type)} devices: name one of {', '.join(same_type)}")
    raise TraceError(f"no device {name!r} was recorded, only {', '.join(known) or 'none'}")


def kind_name(number: int) -> str:
    """A kind's name; "kind_NN" for one that a newer recorder wrote."""
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
BEFORE_RECORDING = "before the recording"
"""What stands for the stack of blocks that were there when the recording began."""
NO_STACK = "(no Python stack)"


def counted(count: int, noun: str) -> str:
    """A count and its noun, in the plural unless it is one: "1 step", "5,662 events"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
