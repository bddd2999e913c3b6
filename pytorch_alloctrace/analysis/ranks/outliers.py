"""When a rank counts as different from the others.

A figure of a rank is out of line if it is further from the median of all ranks than `FAR` times the spread, and than a
floor. The spread is the median absolute deviation from the median, times 1.4826, which makes it the standard deviation
where values are distributed normally: unlike that one it does not grow with the outliers themselves. The floor is what
nobody would look into: `LEAST_SHARE` of the median and `LEAST_BYTES`, of times `LEAST_SHARE_OF_TIME`. Where most ranks
are exactly alike the spread is nothing, and the floor decides.

Two ranks have no others to be compared with: they differ if they are further apart than the floor of the smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FAR = 5.0
_NORMAL = 1.4826
LEAST_SHARE = 0.05
LEAST_BYTES = 1 << 20
LEAST_SHARE_OF_TIME = 0.25

BYTES = ("peak", "reserved", "live")
"""The measures of a device that are compared, by the names of `DeviceFigures`."""
TIME = "seconds_per_step"
MEASURES = (*BYTES, TIME)


@dataclass(frozen=True)
class Spread:
    """What is usual among ranks."""

    measure: str
    median: float
    low: float
    high: float
    width: float
    """So far from the median is out of line."""
    floor: float

    @classmethod
    def of(cls, measure: str, values: Mapping[str, float]) -> Spread:
        """values: by rank."""
        found = np.array([*values.values()], dtype=np.float64)
        median = float(np.median(found))
        floor = least(measure, float(found.min()) if len(found) == 2 else median)
        spread = FAR * _NORMAL * float(np.median(np.abs(found - median)))
        # Of two, each is as far from their median as half of what they are apart.
        width = floor / 2 if len(found) == 2 else max(spread, floor)
        return cls(measure, median, float(found.min()), float(found.max()), width, floor)

    def distance(self, value: float) -> float:
        """From the median, in widths: out of line from 1 on. Negative below."""
        return (value - self.median) / self.width if self.width else 0.0

    @property
    def is_alike(self) -> bool:
        """Whether all values lie within what nobody would look into."""
        return self.high - self.low <= self.floor


@dataclass(frozen=True)
class Deviation:
    """A figure of a rank that is out of line."""

    kind: str
    """Of device."""
    measure: str
    value: float
    usual: float
    """The median of the other ranks."""
    distance: float
    """From the median of all, in multiples of what is just out of line."""


def least(measure: str, median: float) -> float:
    """The floor."""
    if measure == TIME:
        return LEAST_SHARE_OF_TIME * median
    return max(LEAST_SHARE * median, LEAST_BYTES)
