"""What torch's caching allocator asks the driver for, by its rules and its settings at a position of the trace."""

from __future__ import annotations

from dataclasses import dataclass

from ..._replay import DEFAULT_LARGE_SEGMENT, LEAST_OWN_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT
from ...reading.json_text import json_object
from ...reading.recorded import RecordedTrace

MIB = 1 << 20
_UNLIMITED = (1 << 64) - 1


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings that determine the segments (torch: PYTORCH_ALLOC_CONF)."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    """In bytes; None: free blocks of any size are split."""
    large_segment_size: int = DEFAULT_LARGE_SEGMENT

    @classmethod
    def from_json(cls, text: str) -> AllocatorSettings:
        """From the text of a `config` event; what it lacks, or lost to damage, has torch's default."""
        settings = json_object(text)
        numbers = {name: value for name, value in settings.items() if type(value) is int}
        most = numbers.get("max_split_size", _UNLIMITED)
        # A damaged trace may hold any number.
        large = min(max(numbers.get("large_segment_size", DEFAULT_LARGE_SEGMENT), SMALL_SEGMENT), 1 << 62)
        expandable = settings.get("expandable_segments") is True
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
        """The bytes in which an expandable segment is mapped and unmapped."""
        return self.large_segment_size if segment_type == "large" else SMALL_SEGMENT


class SettingsHistory:
    """The settings of each device over a trace."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._known: dict[str, list[tuple[int, AllocatorSettings]]] = {}
        left = trace.kind_counts.get("config", 0)
        columns = ("seq", "device", "nbytes")
        # Most are at the beginning: once the last one is found, the rest need not be read.
        for frame in trace.iter_events(left, columns=columns, kinds=("config",)) if left else ():
            for seq, device, text in zip(frame["seq"], frame["device"], frame["nbytes"], strict=True):
                self._known.setdefault(str(device), []).append(
                    (int(seq), AllocatorSettings.from_json(trace.text(text)))
                )
            left -= len(frame)
            if left <= 0:
                break

    def has(self, device: str) -> bool:
        """Whether the device's allocator reported any: only torch's caching one does."""
        return device in self._known

    def before(self, device: str, until: int) -> AllocatorSettings:
        """Those in force before event `until`. torch's defaults if the trace has none."""
        found = AllocatorSettings()
        for seq, settings in self._known.get(device, ()):
            if seq >= until:
                break
            found = settings
        return found
