"""What torch's caching allocator asks the driver for, by its rules and its settings at a moment of the trace."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...reading.recorded import RecordedTrace

MIB = 1 << 20
SMALL_REQUEST = MIB
"""Requests up to here come from the small pool."""
SMALL_SEGMENT = 2 * MIB
"""Size of all its segments; and unit of those that are made for one request."""
LEAST_OWN_SEGMENT = 10 * MIB
"""From here on a request gets a segment of its own size."""
DEFAULT_LARGE_SEGMENT = 20 * MIB
LEAST_SPLIT_SIZE = 20 * MIB
"""torch takes no max_split_size_mb that is not above this."""
_UNLIMITED = (1 << 64) - 1


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings that decide which segments are made (torch: PYTORCH_ALLOC_CONF)."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """In bytes; None: free blocks of any size are split."""
    large_segment_size: int = DEFAULT_LARGE_SEGMENT

    @classmethod
    def from_json(cls, text: str) -> AllocatorSettings:
        """From the text of a `config` event; what it does not tell, or damage took, is as torch has it by default."""
        try:
            told = json.loads(text)
        except ValueError:
            return cls()
        numbers = {name: value for name, value in told.items() if type(value) is int} if isinstance(told, dict) else {}
        most = numbers.get("max_split_size", _UNLIMITED)
        # A damaged trace may hold any number.
        large = min(max(numbers.get("large_segment_size", DEFAULT_LARGE_SEGMENT), SMALL_SEGMENT), 1 << 62)
        expandable = isinstance(told, dict) and told.get("expandable_segments") is True
        return cls(expandable, None if most >= _UNLIMITED else most, large)

    def segment_size(self, requested: int) -> int:
        """What torch needs from the driver for a request that no free block serves, and what its error message says it
        tried to allocate (c10/cuda/CUDACachingAllocator.cpp: get_allocation_size). In bytes."""
        if requested <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if requested < LEAST_OWN_SEGMENT:
            return self.large_segment_size
        return -(-requested // SMALL_SEGMENT) * SMALL_SEGMENT

    def mapping_unit(self, segment_type: str) -> int:
        """In what sizes an expandable segment is mapped and unmapped. In bytes."""
        return self.large_segment_size if segment_type == "large" else SMALL_SEGMENT


class SettingsHistory:
    """The settings of each device over a trace."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._told: dict[str, list[tuple[int, AllocatorSettings]]] = {}
        left = trace.kind_counts.get("config", 0)
        columns = ("seq", "device", "nbytes")
        # They mostly stand at the beginning: with the last one found, the rest need not be read.
        for frame in trace.iter_events(left, columns=columns, kinds=("config",)) if left else ():
            for seq, device, text in zip(frame["seq"], frame["device"], frame["nbytes"], strict=True):
                self._told.setdefault(str(device), []).append((int(seq), AllocatorSettings.from_json(trace.text(text))))
            left -= len(frame)
            if left <= 0:
                break

    def tells(self, device: str) -> bool:
        """Whether the device's allocator has told any: those that are not torch's caching one never do."""
        return device in self._told

    def before(self, device: str, until: int | None) -> AllocatorSettings:
        """Those in force before event `until`; None: at the end. torch's defaults where the trace tells none."""
        found = AllocatorSettings()
        for seq, settings in self._told.get(device, ()):
            if until is not None and seq >= until:
                break
            found = settings
        return found
