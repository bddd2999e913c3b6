"""Limits on growth, which `--fail-above` sets, and the devices whose leaks are above one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PositionError
from ..reading.recorded import RecordedTrace
from .leaks.leak import Leak


@dataclass(frozen=True)
class GrowthLimit:
    """Bytes, bytes per step, or a share of what there was before: one of these."""

    text: str
    """As it was given."""
    bytes: int | None = None
    per_step: bool = False
    """Whether `bytes` are those of a step."""
    share: float | None = None

    def is_exceeded(self, grew: float, before: int, per_step: float | None) -> bool:
        """Whether `grew` bytes, on top of `before`, are more than this allows.

        per_step: how many of them a step; None, where that is unknown, raises ValueError if it is what is limited.
        """
        if self.share is not None:
            return grew > self.share * before
        assert self.bytes is not None
        if not self.per_step:
            return grew > self.bytes
        if per_step is None:
            raise ValueError("growth per step is limited, and it is unknown")
        return per_step > self.bytes


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
        total, rate = sum(leak.allocated_bytes for leak in own), sum(leak.bytes_per_unit for leak in own)
        if limit.is_exceeded(total, peak.bytes if peak else 0, rate):
            found.append(Exceeded(device, total, rate, own[0].unit))
    return found
