"""Which devices leak more than a limit allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import PositionError
from ...reading.recorded import RecordedTrace
from ..limit import GrowthLimit
from .leak import Leak


@dataclass(frozen=True)
class Exceeded:
    """A device whose leaks, all together, are above a limit."""

    device: str
    bytes: int
    rate: float
    """Bytes per `unit`."""
    unit: str


def devices_above(trace: RecordedTrace, leaks: Sequence[Leak], limit: GrowthLimit) -> list[Exceeded]:
    """The devices whose leaks are above the limit; a share is one of the device's peak.

    Raises PositionError for a limit per step in a trace without steps.
    """
    if limit.per_step and not len(trace.steps()):
        raise PositionError(f"{limit.text} cannot be judged: the trace has no steps")
    found = []
    for device in dict.fromkeys(leak.device for leak in leaks):
        own = [leak for leak in leaks if leak.device == device]
        peak = trace.replay.peak("allocated", device)
        total, rate = sum(leak.bytes for leak in own), sum(leak.rate for leak in own)
        if limit.is_exceeded(total, peak.bytes if peak else 0, rate):
            found.append(Exceeded(device, total, rate, own[0].unit))
    return found
