"""The sensible settings, each with the smallest GPU that the run fits on: what a report shows without being asked, and
so within a bound of work."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...reading.recorded import RecordedTrace
from .fitting import smallest_cards
from .model import Gpu, Model
from .prediction import WhatIf, predict_of
from .settings import SENSIBLE, parse_setting

MOST_EVENTS = 20_000_000
"""Of the traces of which anything is tried, for each device that is: they are read a few times."""
MOST_WORK = 60_000_000
"""Requests that are run, all simulations of all devices together: half for the settings, half for the GPUs. About ten
seconds of a processor."""


@dataclass(frozen=True, eq=False)
class Choices:
    """What was tried of one device."""

    device: str
    """Torch's spelling."""
    found: WhatIf | None
    """As `Trace.what_if` has it, the settings that were not tried left out; None where nothing was tried."""
    smallest: tuple[tuple[str, Gpu] | None, ...] = field(repr=False)
    """For each outcome, the smallest of the common GPUs from which on it fits on all; None: on none. Empty if it was
    not tried."""
    left_out: tuple[str, ...] = ()
    """Sensible settings that were not tried, since the trace is long."""


def modelled_devices(trace: RecordedTrace) -> tuple[str, ...]:
    """The CUDA devices of which settings are tried: of a long trace those with the most reserved."""
    known = [name for name in trace.replay.used_devices if name.startswith("cuda")]

    def reserved(name: str) -> int:
        peak = trace.replay.peak("reserved", name)
        return peak.bytes if peak is not None else 0

    return tuple(sorted(known, key=reserved, reverse=True)[: MOST_EVENTS // max(trace.integrity.events, 1)])


def choices_for(trace: RecordedTrace, device: str, most_work: int = MOST_WORK) -> Choices:
    """What the sensible settings come to on a device. Raises NotPredictableError where it cannot be told."""
    model = Model(trace, device)
    orders = len(model.orders())
    runs = most_work // 2 // max(model.requests, 1)
    count = min(len(SENSIBLE), runs // orders - 1)  # one is as recorded
    if count < 1:
        return Choices(device, None, (), SENSIBLE)
    found = predict_of(model, [parse_setting(text) for text in SENSIBLE[:count]], is_ranked=True)
    smallest = smallest_cards(model, found.outcomes, runs)
    return Choices(device, found, tuple(smallest or ()), SENSIBLE[count:])
