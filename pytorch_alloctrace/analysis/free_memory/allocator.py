"""The settings of torch's caching allocator over a trace."""

from __future__ import annotations

from ..._replay import AllocatorSettings
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace

MIB = 1 << 20


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
                self._known.setdefault(device, []).append((seq, AllocatorSettings(trace.text(text))))
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
