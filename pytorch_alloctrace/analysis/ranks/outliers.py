"""Outliers among ranks: in which figure a rank differs, and since which step.

A figure of a rank is an outlier if its distance from the median of all ranks exceeds both `OUTLIER_DEVIATIONS` times
the spread and a floor. The spread is the median absolute deviation, times 1.4826 to equal the standard deviation of
normally distributed values. Unlike the standard deviation, it does not grow with the outliers. The floor is the larger
of `MIN_SHARE` of the median and `MIN_BYTES`; for times it is `MIN_SHARE_OF_TIME` of the median. If most ranks are
exactly alike, the spread is 0 and the floor decides. The time per step is the median of a rank's steps, and must also
differ in nine tenths of the steps.

Two ranks differ if their distance exceeds the floor of the smaller value.

Two outliers among four ranks widen the spread by which both are judged. So the other ranks are judged again without
the outliers and those with a leak or failed allocation of their own, until no more differ. In these rounds two of the
others must be alike, that is, not differ by more than the floor: neither two ranks that are left nor stages of a
pipeline are typical of the run.

The causes of a difference: the live bytes at the ends of steps are compared with the median of other ranks. The
difference is fitted by a constant, a jump in some step, and linear growth from some step on. Jump and growth are each
part of the fit only if they reduce the sum of squared residuals below `MAX_RESIDUAL_SHARE` of that without them (and of
that of a straight line); the steps are those with the smallest sum. Growth that ends in some step replaces both if it
fits as well. What is also compared is by how much the highest
level of each step exceeds that at its end: a constant or a jump. All causes but the first count only if they exceed the
width of an outlier, and those within the steps only if they exceed the growth of one step too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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

CONSTANT, JUMP, GROWTH, WITHIN = "constant", "jump", "growth", "within_steps"

MIN_STEPS = 4
MAX_STARTS, MAX_TURNS = 24, 20
"""Maximum number of steps from which each part of a pair is searched, and of turns of the search."""
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
    """Distance from the median of the ranks that it was judged with (see `Spread.distance`)."""


def compute_floor(measure: str, median: float) -> float:
    """Return the smallest difference that counts: bytes, or seconds per step."""
    if measure == TIME:
        return MIN_SHARE_OF_TIME * median
    return max(MIN_SHARE * median, MIN_BYTES)


def has_alike_pair(measure: str, values: Sequence[float]) -> bool:
    """Return whether two values around the median differ by no more than the floor."""
    median = float(np.median(values)) if len(values) else 0.0
    return bool(np.count_nonzero(np.abs(np.array(values) - median) <= compute_floor(measure, median) / 2) >= 2)


@dataclass(frozen=True)
class Cause:
    """Part of a rank's difference from the others, and its beginning."""

    kind: str
    """CONSTANT, JUMP or GROWTH of the bytes at the ends of steps; WITHIN: only within the steps."""
    step: int
    from_start: bool
    bytes: int
    """Difference in bytes; of GROWTH per step."""
    last_step: int | None = None
    """Last step of GROWTH that ended; None if it went on."""


@dataclass(frozen=True)
class Departure:
    causes: tuple[Cause, ...]
    """The causes at the ends of steps, the clearest first, then those within the steps."""
    steps: tuple[int, ...]
    live: tuple[int, ...]
    """Requested bytes that were live at the ends of `steps`."""
    usual: tuple[int, ...]

    @property
    def step(self) -> int:
        return self.causes[0].step

    @property
    def from_start(self) -> bool:
        return self.causes[0].from_start


def find_departure(own: Levels, others: Sequence[Levels]) -> Departure | None:
    """Return how and when a rank departed from the others; None if it did not, or if too few steps are common.

    Fewer than `MIN_STEPS` are too few.
    """
    live, peaks = np.full((2, len(others), len(own.steps)), np.nan)
    for row, other in enumerate(others):
        _, own_positions, other_positions = np.intersect1d(own.steps, other.steps, return_indices=True)
        live[row, own_positions] = other.live[other_positions]
        peaks[row, own_positions] = other.peak[other_positions]
    # A step that most other ranks do not have has no median.
    is_common = np.count_nonzero(~np.isnan(live), axis=0) * 2 >= max(len(others), 1)
    if not len(others) or np.count_nonzero(is_common) < MIN_STEPS:
        return None
    steps, own_live, own_peaks = (values[is_common].astype(np.float64) for values in (own.steps, own.live, own.peak))
    live, peaks = live[:, is_common], peaks[:, is_common]
    usual, usual_peaks = np.nanmedian(live, axis=0), np.nanmedian(peaks, axis=0)
    causes = []
    if np.any(np.abs(own_live - usual) >= MIN_BYTES):
        causes = _find_causes(steps, own_live - usual, _width(live, usual))
    # Whether a block that stays was allocated before or after the peak of its step is unknown.
    growth = sum(abs(cause.bytes) for cause in causes if cause.kind == GROWTH)
    differences_within = (own_peaks - own_live) - np.nanmedian(peaks - live, axis=0)
    within = _find_cause_within(steps, differences_within, _width(peaks, usual_peaks) + growth)
    causes += [within] if within is not None else []
    if not causes:
        return None
    return Departure(
        causes=tuple(causes),
        steps=tuple(own.steps[is_common].tolist()),
        live=tuple(own.live[is_common].tolist()),
        usual=tuple(usual.astype(np.int64).tolist()),
    )


def _width(table: Values, usual: Values) -> float:
    """Return the minimum difference that counts, as in `Spread`, from the ranks' values in each step."""
    spread = OUTLIER_DEVIATIONS * _NORMAL * float(np.median(np.nanmedian(np.abs(table - usual), axis=0)))
    return max(spread, compute_floor("live", float(np.median(usual))))


@dataclass(frozen=True)
class _Part:
    """A jump in a step, or growth from the end of the step before on, which may end with a step."""

    kind: str
    index: int
    """Index of the first step; 0 for growth since the first step."""
    last: int | None = None
    """Index of the last step of growth that ends."""

    def values(self, steps: Values) -> Values:
        if self.kind == JUMP:
            return (np.arange(len(steps)) >= self.index).astype(np.float64)
        until = steps if self.last is None else np.minimum(steps, steps[self.last])
        growth: Values = np.maximum(until - steps[max(self.index - 1, 0)], 0.0)
        return growth


def _find_causes(steps: Values, difference: Values, width: float) -> list[Cause]:
    """Return the causes of a difference that is not 0, the clearest first."""
    first = _find_part(steps, difference, (JUMP, GROWTH))
    parts = [] if first is None else [first]
    if first is not None and _residual(steps, difference, parts) > _rounding_error(difference):
        pair = sorted(_find_pair(steps, difference), key=lambda part: part.kind != parts[0].kind)
        better = min([_find_ended_growth(steps, difference)], pair, key=partial(_residual, steps, difference))
        if _residual(steps, difference, better) < MAX_RESIDUAL_SHARE * _residual(steps, difference, parts):
            parts = better
    constant, *factors = _fit(difference, [part.values(steps) for part in parts])[1].tolist()
    causes = []
    for number, (part, factor) in enumerate(zip(parts, factors, strict=True)):
        if number and abs(factor) * float(part.values(steps)[-1]) < width:
            continue
        last_step = None if part.last is None else int(steps[part.last])
        causes.append(Cause(part.kind, int(steps[part.index]), part.index == 0, round(factor), last_step))
    if abs(constant) >= (width if causes else MIN_BYTES):
        causes.append(Cause(CONSTANT, int(steps[0]), True, round(constant)))
    return causes


def _find_pair(steps: Values, difference: Values) -> tuple[_Part, _Part]:
    """Return the jump and the growth that fit a difference best together.

    The search begins at the best of evenly spaced pairs: from the best single part it ends in a local optimum.
    """
    indices = np.unique(np.linspace(0, len(steps) - 1, MAX_STARTS).astype(int)).tolist()
    pairs = [(_Part(JUMP, max(jump, 1)), _Part(GROWTH, growth)) for jump in indices for growth in indices]
    jump, growth = min(pairs, key=lambda pair: _residual(steps, difference, pair))
    for _ in range(MAX_TURNS):
        previous = jump, growth
        jump = _find_part(steps, difference, (JUMP,), growth) or jump
        growth = _find_part(steps, difference, (GROWTH,), jump) or growth
        if (jump, growth) == previous:
            break
    return jump, growth


def _find_ended_growth(steps: Values, difference: Values) -> _Part:
    """Return the growth between two steps that fits a difference best: the best of evenly spaced pairs, moved.

    Both ends are moved together, by fewer and fewer steps: moved alone, they end in a local optimum.
    """
    count = len(steps)
    indices = np.unique(np.linspace(0, count - 1, MAX_STARTS).astype(int)).tolist()
    parts = [_Part(GROWTH, first, last) for first in indices for last in indices if first < last]
    part = parts[_select_best(steps, difference, parts)]
    distance = -(-count // MAX_STARTS)
    for _ in range(MAX_TURNS):
        moves = [-2 * distance, -distance, 0, distance, 2 * distance]
        moved = [(part.index + first, (part.last or 0) + last) for first in moves for last in moves]
        parts = [_Part(GROWTH, first, last) for first, last in moved if 0 <= first < last < count]
        best = parts[_select_best(steps, difference, parts)]
        if best == part and distance == 1:
            break
        distance = -(-distance // 2) if best == part else distance
        part = best
    return part


def _residual(steps: Values, difference: Values, parts: Sequence[_Part]) -> float:
    return _fit(difference, [part.values(steps) for part in parts])[0]


def _find_cause_within(steps: Values, difference: Values, width: float) -> Cause | None:
    part = _find_part(steps, difference, (JUMP,))
    is_from_start = part is None or abs(float(np.median(difference[: part.index]))) >= width
    begin = 0 if part is None or is_from_start else part.index
    size = float(np.median(difference[begin:]))
    return None if abs(size) < width else Cause(WITHIN, int(steps[begin]), is_from_start, round(size))


def _find_part(steps: Values, difference: Values, kinds: Sequence[str], other: _Part | None = None) -> _Part | None:
    """Return the part that fits a difference best, beside another part; None if none fits well."""
    others = [] if other is None else [other.values(steps)]
    from_start = _Part(GROWTH, 0)
    residual_of_constant = _fit(difference, others)[0]
    residual_of_line = _fit(difference, [*others, from_start.values(steps)])[0] if GROWTH in kinds else np.inf
    parts = [_Part(kind, index) for kind in kinds for index in range(1, len(steps))]
    best = _select_best(steps, difference, parts, others)
    residual = _fit(difference, [*others, parts[best].values(steps)])[0]
    rounding_error = _rounding_error(difference)
    without = min(residual_of_constant, residual_of_line)
    if without > rounding_error and residual < MAX_RESIDUAL_SHARE * without:
        return parts[best]
    has_grown = residual_of_constant > rounding_error and residual_of_line < MAX_RESIDUAL_SHARE * residual_of_constant
    return from_start if has_grown else None


def _select_best(steps: Values, difference: Values, parts: Sequence[_Part], others: Sequence[Values] = ()) -> int:
    """Return the index of the part that fits a difference best, beside a constant and others."""
    columns = np.stack([part.values(steps) for part in parts], axis=1)
    base = np.linalg.qr(np.stack([np.ones(len(steps)), *others], axis=1))[0]
    remainder, columns = difference - base @ (base.T @ difference), columns - base @ (base.T @ columns)
    norms = np.sum(columns**2, axis=0)
    return int(np.argmax((remainder @ columns) ** 2 / np.where(norms > 0, norms, np.inf)))


def _rounding_error(difference: Values) -> float:
    """Return the residual that is 0: sums of squares in float64 have about 16 exact digits."""
    return 1e-12 * float(difference @ difference)


def _fit(values: Values, parts: Sequence[Values]) -> tuple[float, Values]:
    """Return the sum of squared residuals of the best fit by a constant and parts, and their factors."""
    columns = np.stack([np.ones(len(values)), *parts], axis=1)
    factors = np.linalg.lstsq(columns, values, rcond=None)[0].astype(np.float64)
    residuals = values - columns @ factors
    return float(residuals @ residuals), factors
