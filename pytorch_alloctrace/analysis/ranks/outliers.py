"""Outliers among ranks: in which figure a rank differs, and since which step.

A figure of a rank is an outlier if its distance from the median of all ranks exceeds both `OUTLIER_DEVIATIONS` times
the spread and a floor. The spread is the median absolute deviation, times 1.4826 to equal the standard deviation of
normally distributed values. Unlike the standard deviation, it does not grow with the outliers. The floor is the larger
of `MIN_SHARE` of the median and `MIN_BYTES`; for times it is `MIN_SHARE_OF_TIME` of the median. If most ranks are
exactly alike, the spread is 0 and the floor decides.

Two ranks differ if their distance exceeds the floor of the smaller value.

The step of a departure: the live bytes at the ends of steps are compared with the median of other ranks. For every step
the difference is fitted as a jump in this step and as linear growth from this step on. The step with the smallest sum
of squared residuals is the departure. If the sum is at least `MAX_RESIDUAL_SHARE` of that of a constant or a straight
line, the rank has differed since the first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .rank_summary import Levels

OUTLIER_DEVIATIONS = 5.0
_NORMAL = 1.4826
MIN_SHARE = 0.05
MIN_BYTES = 1 << 20
MIN_SHARE_OF_TIME = 0.25

BYTES = ("peak", "reserved", "live")
TIME = "seconds_per_step"
MEASURES = (*BYTES, TIME)

MIN_STEPS = 4
MAX_RESIDUAL_SHARE = 0.5
"""Maximum residual of a fit with a departure, as a share of the residual without one."""

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    measure: str
    median: float
    low: float
    high: float
    width: float
    """Minimum distance of an outlier from the median."""
    floor: float

    @classmethod
    def of(cls, measure: str, values: Mapping[str, float]) -> Spread:
        figures = np.array([*values.values()], dtype=np.float64)
        median = float(np.median(figures))
        floor = compute_floor(measure, float(figures.min()) if len(figures) == 2 else median)
        spread = OUTLIER_DEVIATIONS * _NORMAL * float(np.median(np.abs(figures - median)))
        # The distance of each of two values from their median is half of their difference.
        width = floor / 2 if len(figures) == 2 else max(spread, floor)
        return cls(measure, median, float(figures.min()), float(figures.max()), width, floor)

    def distance(self, value: float) -> float:
        """Return the distance from the median in widths: an outlier from 1 on, negative below the median."""
        return (value - self.median) / self.width if self.width else 0.0

    @property
    def is_alike(self) -> bool:
        return self.high - self.low <= self.floor


@dataclass(frozen=True)
class Deviation:
    kind: str
    measure: str
    value: float
    usual: float
    """Median of the other ranks."""
    distance: float
    """Distance from the median of all ranks (see `Spread.distance`)."""


def compute_floor(measure: str, median: float) -> float:
    """Return the smallest difference that counts: bytes, or seconds per step."""
    if measure == TIME:
        return MIN_SHARE_OF_TIME * median
    return max(MIN_SHARE * median, MIN_BYTES)


@dataclass(frozen=True)
class Departure:
    step: int
    from_start: bool
    steps: tuple[int, ...]
    live: tuple[int, ...]
    """Requested bytes that were live at the ends of `steps`."""
    usual: tuple[int, ...]


def find_departure(own: Levels, others: Sequence[Levels]) -> Departure | None:
    """Return the step in which a rank departed from the others; None if fewer than `MIN_STEPS` steps are common."""
    table = np.full((len(others), len(own.steps)), np.nan)
    for row, other in zip(table, others, strict=True):
        _, own_positions, other_positions = np.intersect1d(own.steps, other.steps, return_indices=True)
        row[own_positions] = other.live[other_positions]
    # A step that most other ranks do not have has no median.
    is_common = np.count_nonzero(~np.isnan(table), axis=0) * 2 >= max(len(others), 1)
    if not len(others) or np.count_nonzero(is_common) < MIN_STEPS:
        return None
    steps, live, usual = (
        own.steps[is_common],
        own.live[is_common].astype(np.float64),
        np.nanmedian(table[:, is_common], axis=0),
    )
    index = _find_departure_index(steps.astype(np.float64), live - usual)
    return Departure(
        step=int(steps[index or 0]),
        from_start=index is None,
        steps=tuple(steps.tolist()),
        live=tuple(live.astype(np.int64).tolist()),
        usual=tuple(usual.astype(np.int64).tolist()),
    )


def _find_departure_index(steps: Values, difference: Values) -> int | None:
    """Return the index of the step in which the difference began; None if it exists since the first step."""
    count = len(steps)
    # Sums of squares in float64 have about 16 exact digits: a smaller residual is rounding error.
    rounding_error = 1e-12 * float(difference @ difference)
    difference = difference - difference.mean()
    residual_of_constant = float(difference @ difference)
    residual_of_line = _fit_line(steps, difference)
    residual_without = min(residual_of_constant, residual_of_line)
    # A jump at step i: one mean before step i, another from step i on.
    sums, squares = np.cumsum(difference), np.cumsum(difference**2)
    indices = np.arange(1, count)
    squares_before = squares[indices - 1] - sums[indices - 1] ** 2 / indices
    squares_after = (squares[-1] - squares[indices - 1]) - (sums[-1] - sums[indices - 1]) ** 2 / (count - indices)
    jumps = np.maximum(squares_before + squares_after, 0.0)
    # Linear growth from the end of step i - 1 on: a mean and a slope.
    slopes = np.array([_fit_line(np.maximum(steps - steps[index - 1], 0.0), difference) for index in indices])
    best_jump, best_slope = int(np.argmin(jumps)), int(np.argmin(slopes))
    departure_index, residual = min(
        ((best_jump + 1, float(jumps[best_jump])), (best_slope + 1, float(slopes[best_slope]))),
        key=lambda item: item[1],
    )
    if residual_without <= rounding_error or residual >= MAX_RESIDUAL_SHARE * residual_without:
        return None
    return departure_index


def _fit_line(positions: Values, values: Values) -> float:
    """Return the sum of squared residuals of the best straight line."""
    centered_positions, centered_values = positions - positions.mean(), values - values.mean()
    spread = float(centered_positions @ centered_positions)
    slope = float(centered_positions @ centered_values) / spread if spread else 0.0
    return float(np.sum((centered_values - slope * centered_positions) ** 2))
