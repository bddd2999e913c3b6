"""The settings of torch's caching allocator over a trace."""

from __future__ import annotations

from ..._replay import AllocatorSettings
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace

MIB = 1 << 20


class SettingsHistory:
    def __init__(self, trace: RecordedTrace) -> None:
        self._changes: dict[str, list[tuple[int, AllocatorSettings]]] = {}
        self._texts: dict[str, set[int]] = {}
        events_left = trace.kind_counts.get("config", 0)
        run = Range(0, trace.end_seq)
        # Most config events are at the beginning: stopping after the last one avoids decoding the rest.
        for events in trace.iter_events(run, ("config",), chunk=events_left, with_state=False) if events_left else ():
            devices, texts = trace.devices_of(events).tolist(), events["requested_bytes"].tolist()
            for seq, device, text in zip(events["seq"].tolist(), devices, texts, strict=True):
                self._changes.setdefault(device, []).append((seq, AllocatorSettings(trace.text(text))))
                self._texts.setdefault(device, set()).add(text)
            events_left -= len(events)
            if events_left <= 0:
                break

    def has(self, device: str) -> bool:
        """Return True if the device's allocator reported settings: only torch's caching allocator does."""
        return device in self._changes

    def has_changed(self, device: str) -> bool:
        """Return True if the device's settings changed during the recording."""
        return len(self._texts.get(device, ())) > 1

    def before(self, device: str, until: int) -> AllocatorSettings:
        """Return the settings in force before event `until`; torch's defaults if the trace has none."""
        settings = AllocatorSettings()
        for seq, change in self._changes.get(device, ()):
            if seq >= until:
                break
            settings = change
        return settings
