"""Predictions for a report: default settings, each with the smallest GPU that the run fits on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...reading.recorded import RecordedTrace
from .fitting import smallest_gpus
from .model import Gpu, Model
from .prediction import WhatIf, predict_of
from .settings import list_candidates, parse_setting

MAX_EVENTS = 20_000_000
"""Maximum events of a trace, summed over the simulated devices: each device takes a few passes."""
MOST_WORK = 60_000_000
"""Maximum requests of all simulations, half for the settings and half for the GPUs: about ten seconds of one core."""


@dataclass(frozen=True, eq=False)
class Choices:
    device: str
    prediction: WhatIf | None
    """Result of `Trace.what_if`; None if no setting was tried."""
    smallest: tuple[Gpu | None, ...] = field(repr=False)
    """Result of `smallest_gpus`; empty if no GPU was tried."""
    left_out: tuple[str, ...] = ()
    """Default settings that were not tried, because the trace is long."""


def modelled_devices(trace: RecordedTrace) -> tuple[str, ...]:
    """Return the CUDA devices to simulate; in a long trace, those with the most reserved bytes."""
    cuda_devices = [name for name in trace.replay.used_devices if name.startswith("cuda")]

    def peak_reserved(name: str) -> int:
        peak = trace.replay.peak("reserved", name)
        return peak.bytes if peak is not None else 0

    return tuple(sorted(cuda_devices, key=peak_reserved, reverse=True)[: MAX_EVENTS // max(trace.integrity.events, 1)])


def choices_for(trace: RecordedTrace, device: str, max_requests: int = MOST_WORK) -> Choices:
    model = Model(trace, device)
    orders = len(model.orders())
    max_runs = max_requests // 2 // max(model.requests, 1)
    candidates = list_candidates(model.changes)
    count = min(len(candidates), max_runs // orders - 1)  # one simulation has the recorded settings
    if count < 1:
        return Choices(device, None, (), candidates)
    prediction = predict_of(model, [parse_setting(text) for text in candidates[:count]], is_ranked=True)
    smallest = smallest_gpus(model, prediction.outcomes, max_runs)
    return Choices(device, prediction, tuple(smallest or ()), candidates[count:])
