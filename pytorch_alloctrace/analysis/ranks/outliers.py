"""Ranks that differ from the others: in which figure, and since which step.

A figure of a rank is an outlier if it is further from the median of all ranks than `FAR` times the spread, and than a
floor. The spread is the median absolute deviation from the median, times 1.4826, which makes it the standard deviation
where values are distributed normally: unlike that one it does not grow with the outliers themselves. The floor is what
nobody would look into: `LEAST_SHARE` of the median and `LEAST_BYTES`, of times `LEAST_SHARE_OF_TIME`. Where most ranks
are exactly alike the spread is nothing, and the floor decides.

Two ranks have no others to be compared with: they differ if they are further apart than the floor of the smaller.

Since when: what the rank holds at the ends of its steps is compared with the median of other ranks. The difference is
explained in the two ways in which a rank may depart from the others, for every step in which it may have begun: it
jumps there from one level to another, or grows evenly from there on. The step that leaves the smallest sum of squares
is when it departed. A difference that is better explained without a beginning has been there from the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .rank_summary import Levels

FAR = 5.0
_NORMAL = 1.4826
LEAST_SHARE = 0.05
LEAST_BYTES = 1 << 20
LEAST_SHARE_OF_TIME = 0.25

BYTES = ("peak", "reserved", "live")
"""The measures of a device that are compared, by the names of `DeviceFigures`."""
TIME = "seconds_per_step"
MEASURES = (*BYTES, TIME)

LEAST_STEPS = 4
"""Fewer show no beginning."""
BETTER = 0.5
"""A beginning must leave less than this share of what is left unexplained without one."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """What is usual among ranks."""

    measure: str
    median: float
    low: float
    high: float
    width: float
    """So far from the median is an outlier."""
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
        """From the median, in widths: an outlier from 1 on. Negative below."""
        return (value - self.median) / self.width if self.width else 0.0

    @property
    def is_alike(self) -> bool:
        """Whether all values lie within what nobody would look into."""
        return self.high - self.low <= self.floor


@dataclass(frozen=True)
class Deviation:
    """A figure of a rank that is an outlier."""

    kind: str
    """Of device."""
    measure: str
    value: float
    usual: float
    """The median of the other ranks."""
    distance: float
    """From the median of all, in multiples of what is just an outlier."""


def least(measure: str, median: float) -> float:
    """The floor."""
    if measure == TIME:
        return LEAST_SHARE_OF_TIME * median
    return max(LEAST_SHARE * median, LEAST_BYTES)


@dataclass(frozen=True)
class Departure:
    """When a rank departed from the others."""

    step: int
    from_start: bool
    """It differs since the first step."""
    steps: tuple[int, ...]
    live: tuple[int, ...]
    """What it held at the ends of these steps,"""
    usual: tuple[int, ...]
    """and the median of the others."""


def find_departure(own: Levels, others: Sequence[Levels]) -> Departure | None:
    """None if there are too few steps in common."""
    table = np.full((len(others), len(own.steps)), np.nan)
    for row, other in zip(table, others, strict=True):
        _, here, there = np.intersect1d(own.steps, other.steps, return_indices=True)
        row[here] = other.live[there]
    # Where most others are no longer there, they have no median.
    known = np.count_nonzero(~np.isnan(table), axis=0) * 2 >= max(len(others), 1)
    if not len(others) or np.count_nonzero(known) < LEAST_STEPS:
        return None
    steps, live, usual = own.steps[known], own.live[known].astype(np.float64), np.nanmedian(table[:, known], axis=0)
    begin = _begin(steps.astype(np.float64), live - usual)
    return Departure(
        step=int(steps[begin or 0]),
        from_start=begin is None,
        steps=tuple(steps.tolist()),
        live=tuple(live.astype(np.int64).tolist()),
        usual=tuple(usual.astype(np.int64).tolist()),
    )


def _begin(steps: Values, difference: Values) -> int | None:
    """The index of the step in which it began; None: it has been there from the start."""
    count = len(steps)
    # Sums of squares of bytes are exact to some 16 digits.
    nothing = 1e-12 * float(difference @ difference)
    difference = difference - difference.mean()
    constant = float(difference @ difference)
    line = _after_line(steps, difference)
    without = min(constant, line)
    # A jump at i: two means, before and from i on.
    sums, squares = np.cumsum(difference), np.cumsum(difference**2)
    at = np.arange(1, count)
    before = squares[at - 1] - sums[at - 1] ** 2 / at
    after = (squares[-1] - squares[at - 1]) - (sums[-1] - sums[at - 1]) ** 2 / (count - at)
    jumps = np.maximum(before + after, 0.0)
    # An even growth from the end of step i - 1 on: a mean, and a slope.
    slopes = np.array([_after_line(np.maximum(steps - steps[index - 1], 0.0), difference) for index in at])
    best_jump, best_slope = int(np.argmin(jumps)), int(np.argmin(slopes))
    begin, left = min(
        ((best_jump + 1, float(jumps[best_jump])), (best_slope + 1, float(slopes[best_slope]))), key=lambda one: one[1]
    )
    if without <= nothing or left >= BETTER * without:
        return None
    return begin


def _after_line(positions: Values, values: Values) -> float:
    """The sum of squares that the best straight line leaves."""
    moved, level = positions - positions.mean(), values - values.mean()
    spread = float(moved @ moved)
    slope = float(moved @ level) / spread if spread else 0.0
    return float(np.sum((level - slope * moved) ** 2))
