"""Limits on growth, set by `--fail-above`, and the devices whose leaks exceed a limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import PositionError
from ..reading.recorded import RecordedTrace
from .leaks.leak import Leak

if TYPE_CHECKING:  # every command imports this module
    from .child_runs import ChildRuns
    from .summary import Summary


@dataclass(frozen=True)
class GrowthLimit:
    """A limit on growth: either bytes, bytes per step or iteration, or a share of the bytes before."""

    text: str
    bytes: int | None = None
    per_step: bool = False
    unit: str = "step"
    """Unit if `per_step`: "step"; "iteration" in a trace without steps."""
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
    process: int | None = None
    """Id of the child process; None for the program itself."""


def devices_above(trace: RecordedTrace, leaks: Sequence[Leak], limit: GrowthLimit) -> list[Exceeded]:
    """Return the devices whose leaks exceed the limit; a share refers to the device's peak."""
    has_steps = len(trace.steps()) > 0
    if limit.per_step and limit.unit == "step" and not has_steps:
        raise PositionError(f"{limit.text} cannot be judged: the trace has no steps")
    if limit.per_step and limit.unit == "iteration" and any(leak.unit != "iteration" for leak in leaks):
        reason = "the trace has steps, use a limit with /step" if has_steps else "no loop was found"
        raise PositionError(f"{limit.text} cannot be judged: {reason}")
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


def children_above(children: ChildRuns[Summary], limit: GrowthLimit) -> tuple[list[Exceeded], bool]:
    """Return the devices of children whose leaks exceed the limit, and whether it cannot be judged for some.

    These have leaks but no steps, and the limit is per step.
    """
    exceeded, is_undecided = [], False
    for run in children.runs:
        leaks = [] if run.summary is None else [leak for device in run.summary.devices for leak in device.leaks.leaks]
        if not leaks:
            continue
        try:
            above = devices_above(RecordedTrace(run.trace), leaks, limit)
        except PositionError:
            is_undecided = is_undecided or not all(leak.minor for leak in leaks)
        else:
            exceeded += [dataclasses.replace(device, process=run.process) for device in above]
    return exceeded, is_undecided
