"""Settings that would have helped, as far as a model of torch's allocator shows: to serve a failed allocation, or to
reserve less where memory is fragmented."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .._replay import LEAST_SPLIT_SIZE, SimulationResult
from ..errors import NotPredictableError
from ..reading.recorded import RecordedTrace
from .free_memory.allocator import MIB, SettingsHistory
from .free_memory.oom import OutOfMemory
from .what_if.model import Gpu, Model
from .what_if.prediction import Outcome, outcome
from .what_if.settings import Setting, parse_setting

MOST_REQUESTS = 20_000_000
"""Most events of a trace on which settings are tried: a diagnosis should take seconds. what-if has no such limit."""
NOTABLY_LESS = 0.05
"""Least part of the recorded peak of reserved bytes that a setting must save to be advised."""
_EXPANDABLE = "expandable_segments:True"
_ORDERS = (("lowest", 0), ("highest", 0), ("random", 1))


@dataclass(frozen=True)
class Advice:
    """Settings that a model of torch's allocator was run with, and those that would have helped."""

    helping: tuple[Outcome, ...] = ()
    """Settings under which the request would have been served, and all before it; in the order of `tried`."""
    tried: tuple[str, ...] = ()
    """All that were tried."""
    why_not: str = ""
    """Why nothing was tried, in a sentence; empty if something was."""
    is_certain: bool = True
    """False: they help only if the limit of the process, which no event records, allows the most that they reserve."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Texts of the settings that help whatever the limit of the process is."""
        return tuple(one.setting.text for one in self.helping) if self.is_certain else ()


_TOO_LONG = Advice(why_not="The trace is long: the command what-if tries settings on it.")


class Advisor:
    """Tries settings on a trace. Each answer takes a pass over the events, once, when it is first asked for."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._on_requests: dict[int, Advice] = {}
        self._on_devices: dict[str, Advice | None] = {}

    def on_request(self, oom: OutOfMemory) -> Advice:
        """Return which settings for PYTORCH_ALLOC_CONF would have served a failed allocation, each alone."""
        advice = self._on_requests.get(oom.seq)
        if advice is None:
            advice = self._on_requests[oom.seq] = self._served(oom)
        return advice

    def on_fragmentation(self, device: str) -> Advice | None:
        """Return whether expandable segments would have reserved less on a device; None where they are on already."""
        if device not in self._on_devices:
            settings = SettingsHistory(self._trace).before(device, self._trace.end_seq)
            is_tried = not settings.expandable_segments
            self._on_devices[device] = _to_reserve_less(self._trace, device, _EXPANDABLE) if is_tried else None
        return self._on_devices[device]

    def _served(self, oom: OutOfMemory) -> Advice:
        if oom.limit_bytes is None:
            return self._served_below(oom, None)
        # Somewhere between the two. What helps below the lower one helps in any case.
        certain, possible = (self._served_below(oom, limit) for limit in oom.limit_bytes)
        if certain.helping or not possible.helping:
            return certain
        return replace(possible, is_certain=False)

    def _served_below(self, oom: OutOfMemory, limit: int | None) -> Advice:
        capacity = (
            oom.reserved_bytes + oom.device_free_bytes
            if limit is None
            else max(limit, oom.reserved_bytes + oom.device_free_bytes)
        )
        return _to_serve(
            self._trace, oom.device, oom.seq, _candidates(oom), capacity=capacity, total=oom.device_bytes, limit=limit
        )


def _candidates(oom: OutOfMemory) -> tuple[str, ...]:
    """Settings that keep the pinners of a fragmented pool from cutting up large segments."""
    if oom.settings.expandable_segments:
        return ()
    candidates = [_EXPANDABLE]
    lines = oom.here.pinners_by_line
    if len(lines):
        # Above what pins the most, so that it gets its own segments.
        split = max(-(-int(lines["largest_bytes"][0]) // MIB), LEAST_SPLIT_SIZE // MIB) + 1
        if oom.settings.max_split_size is None or split * MIB < oom.settings.max_split_size:
            candidates.append(f"max_split_size_mb:{split}")
    return tuple(candidates)


def _to_serve(
    trace: RecordedTrace,
    device: str,
    seq: int,
    settings: Sequence[str],
    *,
    capacity: int,
    total: int | None,
    limit: int | None,
) -> Advice:
    """Return the settings that would have served the failed allocation of event `seq`. Sizes are in bytes.

    capacity: what torch could have of the device; total: the whole device, None if unknown; limit: what the process may
    reserve, None: no limit.
    """
    if not settings:
        return Advice()
    if trace.integrity.events > MOST_REQUESTS:
        return _TOO_LONG
    memory = max(total or 0, capacity)
    gpu = Gpu(memory, memory - capacity)
    tried = [parse_setting(text) for text in settings]
    try:
        model = Model(trace, device)
        simulations = model.run(
            [model.simulation(setting, gpu, order, limit=limit) for setting in tried for order in _ORDERS]
        )
    except NotPredictableError as error:
        return Advice(why_not=str(error))
    found = _outcomes(model, tried, gpu, simulations)
    helping = [one for one in found if seq in one.served and (one.refused is None or one.refused.seq > seq)]
    return Advice(tuple(helping), tuple(settings))


def _to_reserve_less(trace: RecordedTrace, device: str, setting: str) -> Advice:
    """Return the settings under which the run would have reserved notably less at its peak, with unlimited memory."""
    if trace.integrity.events > MOST_REQUESTS:
        return _TOO_LONG
    gpu = Gpu(None, 0)
    tried = [parse_setting(setting)]
    try:
        model = Model(trace, device)
        simulations = model.run([model.simulation(tried[0], gpu, order) for order in _ORDERS])
    except NotPredictableError as error:
        return Advice(why_not=str(error))
    recorded = trace.replay.peak("reserved", device)
    most = (recorded.bytes if recorded is not None else 0) * (1 - NOTABLY_LESS)
    found = _outcomes(model, tried, gpu, simulations)
    return Advice(tuple(one for one in found if one.peak_reserved_bytes[1] <= most), (setting,))


def _outcomes(
    model: Model, tried: Sequence[Setting], gpu: Gpu, simulations: Sequence[SimulationResult]
) -> list[Outcome]:
    count = len(_ORDERS)
    return [
        outcome(model, setting, gpu, simulations[number * count : (number + 1) * count])
        for number, setting in enumerate(tried)
    ]
