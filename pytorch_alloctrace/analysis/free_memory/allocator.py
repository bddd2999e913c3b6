"""What torch's caching allocator asks the driver for, by its rules and its settings at a position of the trace."""

from __future__ import annotations

from dataclasses import dataclass

from ..._replay import DEFAULT_LARGE_SEGMENT, LEAST_OWN_SEGMENT, SMALL_REQUEST, SMALL_SEGMENT
from ...reading.json_text import json_object
from ...reading.positions import Range
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

    def mapping_unit(self, *, is_large: bool) -> int:
        """Return the bytes in which an expandable segment of the large or the small pool is mapped and unmapped."""
        return self.large_segment_size if is_large else SMALL_SEGMENT


class SettingsHistory:
    """The settings of each device over a trace."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._known: dict[str, list[tuple[int, AllocatorSettings]]] = {}
        left = trace.kind_counts.get("config", 0)
        whole = Range(0, trace.end_seq)
        # Most are at the beginning: once the last one is found, the rest need not be read.
        for events in trace.iter_events(whole, ("config",), chunk=left, with_state=False) if left else ():
            devices, texts = trace.devices_of(events).tolist(), events["requested_bytes"].tolist()
            for seq, device, text in zip(events["seq"].tolist(), devices, texts, strict=True):
                self._known.setdefault(device, []).append((seq, AllocatorSettings.from_json(trace.text(text))))
            left -= len(events)
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
