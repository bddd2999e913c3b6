"""Limits on growth, set by `--fail-above`, and the devices whose leaks exceed a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PositionError
from ..reading.recorded import RecordedTrace
from .leaks.leak import Leak


@dataclass(frozen=True)
class GrowthLimit:
    """A limit on growth: either bytes, bytes per step, or a share of the bytes before."""

    text: str
    bytes: int | None = None
    per_step: bool = False
    share: float | None = None

    def is_exceeded(self, grew: float, before: int, per_step: float | None) -> bool:
        """Return whether growth by `grew` bytes, from `before` bytes, exceeds the limit."""
        if self.share is not None:
            return grew > self.share * before
        assert self.bytes is not None
        if not self.per_step:
            return grew > self.bytes
        if per_step is None:
            raise ValueError("the limit is per step, but the growth per step is unknown")
        return per_step > self.bytes


@dataclass(frozen=True)
class Exceeded:
    device: str
    bytes: int
    rate: float
    """Bytes per `unit`."""
    unit: str


def devices_above(trace: RecordedTrace, leaks: Sequence[Leak], limit: GrowthLimit) -> list[Exceeded]:
    """Return the devices whose leaks exceed the limit; a share refers to the device's peak."""
    if limit.per_step and not len(trace.steps()):
        raise PositionError(f"{limit.text} cannot be judged: the trace has no steps")
    exceeded = []
    for device in dict.fromkeys(leak.device for leak in leaks):
        device_leaks = [leak for leak in leaks if leak.device == device]
        peak = trace.replay.peak("allocated", device)
        total, rate = (
            sum(leak.allocated_bytes for leak in device_leaks),
            sum(leak.bytes_per_unit for leak in device_leaks),
        )
        if limit.is_exceeded(total, peak.bytes if peak else 0, rate):
            exceeded.append(Exceeded(device, total, rate, device_leaks[0].unit))
    return exceeded
