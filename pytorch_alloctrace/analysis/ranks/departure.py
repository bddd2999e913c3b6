"""Since which step a rank differs from the others.

What it holds at the ends of its steps is compared with the median of other ranks. The difference is explained in the
two ways in which a rank may depart from the others, for every step in which it may have begun: it jumps there from one
level to another, or grows evenly from there on. The step that leaves the smallest sum of squares is when it departed. A
difference that is better explained without a beginning has been there from the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .figures import Levels

LEAST_STEPS = 4
"""Fewer show no beginning."""
BETTER = 0.5
"""A beginning must leave less than this share of what is left unexplained without one."""

Values = npt.NDArray[np.float64]


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
