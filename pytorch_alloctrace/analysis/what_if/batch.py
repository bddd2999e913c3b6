"""Estimate of the memory that a run needs with another batch size, from the roles of its live memory.

Activations, inputs and temporaries are assumed to be proportional to the batch, all other memory to be constant. The
peak may move: with a small batch it may be in the optimizer's step, with a larger one at the end of forward. So the
estimate takes the maximum over intervals of the run, each at its highest level.
"""

from __future__ import annotations

import sys
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
"""Maximum share of the peak in roles that may or may not grow with the batch."""
_MIN_BATCH_SHARE = 0.05
"""Minimum share of the peak in roles that grow with the batch."""


@dataclass(frozen=True, eq=False)
class BatchMemory:
    """Live memory of a run, divided into what grows with the batch and what does not. Requested bytes."""

    growing_bytes: npt.NDArray[np.int64]
    """Bytes of activations, inputs and temporaries (without those of the optimizer) by interval."""
    constant_bytes: npt.NDArray[np.int64]
    """All other bytes by interval."""

    def find_max_factors(self, need_bytes: int, capacity_bytes: int) -> tuple[float, float]:
        """Return a range for the largest factor of the batch that fits into a capacity; 0 if no batch fits.

        At one end, what the recorded batch needs beyond its live memory (rounding, fragmentation, cache) stays
        constant, at the other it grows with the batch.

        Args:
            need_bytes: Memory that the recorded batch needs, in bytes for torch.
            capacity_bytes: Memory that the largest batch may need, in bytes for torch.
        """
        overhead_bytes = max(need_bytes - int((self.growing_bytes + self.constant_bytes).max()), 0)
        factors = (
            _find_factor(self.constant_bytes + overhead_bytes, self.growing_bytes, capacity_bytes),
            _find_factor(self.constant_bytes, self.growing_bytes + overhead_bytes, capacity_bytes),
        )
        return min(factors), max(factors)


def _find_factor(constant: npt.NDArray[np.int64], growing: npt.NDArray[np.int64], capacity: int) -> float:
    """Return the largest factor with `constant + factor * growing` within the capacity in all intervals, at least 0."""
    if constant.max() > capacity:
        return 0.0
    grows = growing > 0
    return float(((capacity - constant[grows]) / growing[grows]).min())


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
    peak = int(total.argmax())
    if growing.max() <= _MIN_BATCH_SHARE * total[peak] or unclear[peak] > _MAX_UNCLEAR_SHARE * total[peak]:
        return None
    return BatchMemory(growing, total - growing)
