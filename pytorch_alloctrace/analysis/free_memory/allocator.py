"""The settings of torch's caching allocator over a trace."""

from __future__ import annotations

from dataclasses import dataclass

from ..._replay import AllocatorSettings
from ...reading.names import KINDS
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site

MIB = 1 << 20
_CONFIG, _FRACTION = "config", "memory_fraction"
_SETTER = "set_per_process_memory_fraction"
_SETTING = "per_process_memory_fraction"


@dataclass(frozen=True)
class MemoryLimit:
    """Origin of the limit on the memory that a process may reserve on a device."""

    site: Site | None = None
    """Line that called `torch.cuda.set_per_process_memory_fraction`; None if it did not or is unknown."""
    variable: str = ""
    """Environment variable that contains `per_process_memory_fraction`; "" if `site` is known or no variable does."""


class SettingsHistory:
    def __init__(self, trace: RecordedTrace) -> None:
        self._changes: dict[str, list[tuple[int, AllocatorSettings]]] = {}
        self._texts: dict[str, set[int]] = {}
        self._trace = trace
        self._limits: dict[str, list[tuple[int, int]]] = {}
        kinds = _CONFIG, _FRACTION
        events_left = sum(trace.kind_counts.get(kind, 0) for kind in kinds)
        run = Range(0, trace.end_seq)
        # Most of these events are at the beginning: stopping after the last one avoids decoding the rest.
        for events in trace.iter_events(run, kinds, chunk=events_left, with_state=False) if events_left else ():
            columns = (events[name].tolist() for name in ("seq", "kind", "requested_bytes", "stack_id"))
            for device, seq, kind, text, stack_id in zip(trace.devices_of(events).tolist(), *columns, strict=True):
                if KINDS[kind] == _FRACTION:
                    self._limits.setdefault(device, []).append((seq, stack_id))
                    continue
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

    def limit_before(self, device: str, until: int) -> MemoryLimit:
        """Return what set the device's memory limit in force before event `until`."""
        stack_id = next((stack for seq, stack in reversed(self._limits.get(device, ())) if seq < until), 0)
        stacks = self._trace.stacks
        # torch's allocator applies the variable when it is initialised, below any line of the program.
        if any(frame.function == _SETTER for frame in stacks.frames(stack_id)):
            return MemoryLimit(site=Site.of_stack(stacks, stack_id))
        environment = self._trace.header.get("environment")
        variables = environment.items() if isinstance(environment, dict) else ()  # a corrupt header has any value
        return MemoryLimit(variable=next((name for name, value in variables if _SETTING in str(value)), ""))
