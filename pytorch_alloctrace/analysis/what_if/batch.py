"""Estimate of the memory that a run needs with another batch size, from the roles of its live memory.

Activations, inputs and temporaries are assumed to be proportional to the batch, all other memory to be constant. The
peak may move: with a small batch it may be in the optimizer's step, with a larger one at the end of forward. So the
upper bound is the minimum over intervals of the run, each at its highest level. The estimate itself is a simulation of
the run with the growing allocations scaled (`fitting.py`), since fragmentation may grow faster than the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...reading.names import ROLES, UNKNOWN
from ...reading.recorded import RecordedTrace
from ..usage.composition import OPTIMIZER, StackPhases

_INTERVALS = 2000
_BATCH_ROLES = ("activation", "input", "temporary")
_UNCLEAR_ROLES = ("other", UNKNOWN)
_MAX_UNCLEAR_SHARE = 0.1
"""Maximum share in roles that may or may not grow with the batch: of the peak, and of what may grow at its peak."""
_MIN_BATCH_SHARE = 0.05
"""Minimum share of the peak in roles that grow with the batch."""


@dataclass(frozen=True, eq=False)
class BatchMemory:
    """Live memory of a run, divided into what grows with the batch and what does not. Requested bytes."""

    growing_bytes: npt.NDArray[np.int64]
    """Bytes of activations, inputs and temporaries (without those of the optimizer) by interval."""
    constant_bytes: npt.NDArray[np.int64]
    """All other bytes by interval."""

    growing_events: Sequence[int]
    """Events of the allocations of `growing_bytes`, ascending."""

    def find_upper_bound(self, capacity_bytes: int) -> float:
        """Return the factor of the batch whose live memory fills a capacity; 0 if no batch fits.

        Rounding, fragmentation and cache come on top, so that the largest batch is below it.
        """
        if self.constant_bytes.max() > capacity_bytes:
            return 0.0
        grows = self.growing_bytes > 0
        return float(((capacity_bytes - self.constant_bytes[grows]) / self.growing_bytes[grows]).min())


def read_batch_memory(trace: RecordedTrace, device: str) -> BatchMemory | None:
    """Return the memory by interval; None if little of the peak grows with the batch, or if much of it is unclear."""
    phases = StackPhases(trace)
    count = len(trace.stacks.parent)
    is_elsewhere = np.array([phases.of_stack(stack) != OPTIMIZER for stack in range(count)], np.int64)
    end_ns = min(trace.end_ns + 1, sys.maxsize)  # a corrupt trace may end at the largest time
    timelines = trace.group_timelines(_INTERVALS, trace.begin_ns, end_ns, {device: is_elsewhere}, 2)
    if device not in timelines:
        return None
    at_peak = timelines[device].at_peak.astype(np.int64)
    by_role = dict(zip(ROLES, at_peak.T, strict=False))
    # Temporaries of the optimizer have the size of parameters. Its other blocks are its state.
    of_optimizer = np.clip(at_peak[:, len(ROLES)] - by_role["optimizer state"], 0, by_role["temporary"])
    growing = np.sum([by_role[role] for role in _BATCH_ROLES], axis=0) - of_optimizer
    total = at_peak[:, : len(ROLES)].sum(axis=1)
    unclear = np.sum([by_role[role] for role in _UNCLEAR_ROLES], axis=0)
    peak, peak_of_large_batch = int(total.argmax()), int((growing + unclear).argmax())
    of_large_batch = (growing + unclear)[peak_of_large_batch]
    if growing.max() <= _MIN_BATCH_SHARE * total[peak]:
        return None
    if unclear[peak] > _MAX_UNCLEAR_SHARE * total[peak]:
        return None
    if unclear[peak_of_large_batch] > _MAX_UNCLEAR_SHARE * of_large_batch:
        return None
    is_of_optimizer = np.concatenate([is_elsewhere == 0, [False]])
    numbers = [ROLES.index(role) for role in _BATCH_ROLES]
    return BatchMemory(growing, total - growing, trace.replay.allocations_with_roles(device, numbers, is_of_optimizer))
