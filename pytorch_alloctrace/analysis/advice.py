"""Advice on failed allocations and fragmentation.

Settings are advised that, in a simulation, serve a failed allocation or reserve less memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .._replay import MIN_SPLIT_SIZE, SimulationResult
from ..errors import NotPredictableError
from ..reading.recorded import RecordedTrace
from .free_memory.allocator import MIB, SettingsHistory
from .free_memory.oom import OutOfMemory
from .leaks.judge import Leak, find_leaks
from .what_if.model import Gpu, Model
from .what_if.prediction import MIN_SAVED_SHARE, Outcome, outcome
from .what_if.settings import (
    EXPANDABLE,
    Setting,
    add_expandable,
    join_changes,
    list_changes,
    list_without_one,
    parse_setting,
)

MAX_EVENTS = 20_000_000
"""Maximum events of a trace for simulations in a diagnosis, which must take seconds. what-if has no such limit."""
_ORDERS = (("lowest", 0), ("highest", 0), ("random", 1))


@dataclass(frozen=True)
class Advice:
    """Settings that were simulated, and those that would have helped."""

    helping: tuple[Outcome, ...] = ()
    """Outcomes of the settings that would have helped, in the order of `tried`."""
    tried: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """Recorded settings that differ from torch's defaults; empty for failed allocations."""
    why_not: str = ""
    """Sentence that explains why no setting was simulated; empty if some were."""
    is_certain: bool = True
    """False if the settings help only under the highest possible memory limit of the process, which is not recorded."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Texts of the settings that help under any memory limit of the process."""
        return tuple(result.setting.text for result in self.helping) if self.is_certain else ()


_TOO_LONG = Advice(why_not="The trace is too long to try settings here: run the command what-if.")


class Advisor:
    """Advice on one trace. Answers are cached; each takes a pass over the events, under a limit two."""

    def __init__(self, trace: RecordedTrace, leaks: Mapping[str, Sequence[Leak]] | None = None) -> None:
        """Create an advisor. leaks: by device, those already found in the whole run."""
        self._trace = trace
        self._leaks = dict(leaks or {})
        self._request_advice: dict[int, Advice] = {}
        self._device_advice: dict[str, Advice] = {}

    def on_request(self, oom: OutOfMemory) -> Advice:
        """Return the settings that, each by itself, would have served a failed allocation and all before it."""
        advice = self._request_advice.get(oom.seq)
        if advice is None:
            advice = self._request_advice[oom.seq] = self._find_serving_settings(oom)
        return advice

    def leading_leak(self, oom: OutOfMemory) -> Leak | None:
        """Return the leak that filled the memory before a failed allocation (see `OutOfMemory.find_leading_leak`)."""
        if oom.device not in self._leaks:
            # A device on which every request failed has no memory to judge.
            is_used = oom.device in self._trace.devices
            self._leaks[oom.device] = find_leaks(self._trace, oom.device).leaks if is_used else ()
        return oom.find_leading_leak(self._leaks[oom.device])

    def on_fragmentation(self, device: str) -> Advice:
        """Return the settings under which a device would have reserved less, the least reserved bytes first.

        Tried are the recorded settings with expandable segments, and without each one that differs from the defaults.
        """
        if device not in self._device_advice:
            changes = list_changes(SettingsHistory(self._trace).before(device, self._trace.end_seq))
            candidates = [] if EXPANDABLE in changes else [add_expandable(changes)]
            candidates += list_without_one(changes)
            advice = _find_saving_settings(self._trace, device, candidates)
            self._device_advice[device] = replace(advice, changes=changes)
        return self._device_advice[device]

    def _find_serving_settings(self, oom: OutOfMemory) -> Advice:
        if oom.limit_bytes is None:
            return self._find_serving_settings_under(oom, None)
        # The limit lies between two bounds. A setting that helps under the lower bound helps in any case.
        certain, possible = (self._find_serving_settings_under(oom, limit) for limit in oom.limit_bytes)
        if certain.helping or not possible.helping:
            return certain
        return replace(possible, is_certain=False)

    def _find_serving_settings_under(self, oom: OutOfMemory, limit: int | None) -> Advice:
        capacity = (
            oom.reserved_bytes + oom.device_free_bytes
            if limit is None
            else max(limit, oom.reserved_bytes + oom.device_free_bytes)
        )
        return _simulate_request(
            self._trace,
            oom.device,
            oom.seq,
            _list_candidates(oom),
            capacity=capacity,
            total=oom.device_bytes,
            limit=limit,
        )


def _list_candidates(oom: OutOfMemory) -> tuple[str, ...]:
    """List settings that keep the pinners of a fragmented pool from splitting large segments."""
    if oom.settings.expandable_segments:
        return ()
    changes = list_changes(oom.settings)
    candidates = [add_expandable(changes)]
    lines = oom.here.pinners_by_line
    if len(lines):
        # Above the largest pinner, so that it gets its own segments.
        split = max(-(-int(lines["largest_bytes"][0]) // MIB), MIN_SPLIT_SIZE // MIB) + 1
        if oom.settings.max_split_size is None or split * MIB < oom.settings.max_split_size:
            others = [change for change in changes if not change.startswith("max_split_size_mb:")]
            candidates.append(join_changes([*others, f"max_split_size_mb:{split}"]))
    return tuple(candidates)


def _simulate_request(
    trace: RecordedTrace,
    device: str,
    seq: int,
    settings: Sequence[str],
    *,
    capacity: int,
    total: int | None,
    limit: int | None,
) -> Advice:
    """Simulate the failed allocation `seq`: torch may use `capacity` of the device's `total` bytes."""
    if not settings:
        return Advice()
    if trace.integrity.events > MAX_EVENTS:
        return _TOO_LONG
    memory = max(total or 0, capacity)
    gpu = Gpu(memory, memory - capacity)
    parsed_settings = [parse_setting(text) for text in settings]
    try:
        model = Model(trace, device)
        simulations = model.run(
            [model.simulation(setting, gpu, order, limit=limit) for setting in parsed_settings for order in _ORDERS]
        )
    except NotPredictableError as error:
        return Advice(why_not=str(error))
    outcomes = _collect_outcomes(model, parsed_settings, gpu, simulations)
    helping = [
        result for result in outcomes if seq in result.served and (result.failure is None or result.failure.seq > seq)
    ]
    return Advice(tuple(helping), tuple(settings))


def _find_saving_settings(trace: RecordedTrace, device: str, settings: Sequence[str]) -> Advice:
    """Advise each setting that, with unlimited memory, lowers the peak of reserved bytes by MIN_SAVED_SHARE or more."""
    if trace.integrity.events > MAX_EVENTS:
        return _TOO_LONG
    gpu = Gpu(None, 0)
    parsed_settings = [parse_setting(setting) for setting in settings]
    try:
        model = Model(trace, device)
        simulations = model.run(
            [model.simulation(setting, gpu, order) for setting in parsed_settings for order in _ORDERS]
        )
    except NotPredictableError as error:
        return Advice(why_not=str(error))
    recorded = trace.replay.peak("reserved", device)
    max_bytes = (recorded.bytes if recorded is not None else 0) * (1 - MIN_SAVED_SHARE)
    outcomes = _collect_outcomes(model, parsed_settings, gpu, simulations)
    helping = [result for result in outcomes if result.peak_reserved_bytes[1] <= max_bytes]
    helping.sort(key=lambda result: result.peak_reserved_bytes[1])
    return Advice(tuple(helping), tuple(settings))


def _collect_outcomes(
    model: Model, settings: Sequence[Setting], gpu: Gpu, simulations: Sequence[SimulationResult]
) -> list[Outcome]:
    count = len(_ORDERS)
    return [
        outcome(model, setting, gpu, simulations[index * count : (index + 1) * count])
        for index, setting in enumerate(settings)
    ]
