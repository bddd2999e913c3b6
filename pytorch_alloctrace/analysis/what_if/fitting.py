"""Smallest memory that a run fits on: `Trace.fit`.

A size is tried as `Trace.what_if` tries it, so both give the same answer for the same memory, whatever the setting.
No size is known to fit without a simulation, not even the peak of reserved bytes without a limit: with expandable
segments, torch's choice of a block depends on the size of the device.

A run that fits on one size need not fit on all larger sizes: a retry changes the layout, and with it what fits later.
So the common GPUs and several sizes up to twice the peak of reserved bytes are tried, then 24 sizes below the peak, and
two scans refine the two edges. From the smallest size on, every tried size fits, in every order of addresses.

What "fits" means: `Outcome.fits`. Failed allocations that the program survived are not tried.

The largest batch on a GPU is a range. The run is simulated with the requests of activations, inputs and temporaries
scaled (`batch.py`). The lower end needs no retry, at it and at all simulated batches below: a run that depends on
retries fits or fails by its layout. The upper end is above all simulated batches that fit in any order of addresses.
Both ends are moved outwards with the distance from the recorded batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..._replay import SimulationResult
from ...gpus import GPUS, GpuMemory
from ...reading.recorded import RecordedTrace
from .batch import BatchMemory, read_batch_memory
from .model import UNLIMITED_BYTES, Check, Gpu, Model
from .prediction import Outcome, gpu_of, is_failed, outcome
from .settings import AS_RECORDED, DEFAULTS, EXPANDABLE, Setting, parse_setting

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.05
"""Fraction to add to the smallest size: the need varies by some percent with the addresses from the driver."""
_GRANULARITY_BYTES = 2 << 20
_MAX_SIZES_PER_SCAN = 24
_LARGER_SIZES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)
"""Tried sizes as multiples of the peak of reserved bytes without a limit."""
_MIN_BATCH_ROUNDS, _MAX_BATCH_ROUNDS = 2, 10
"""Simulated batches per GPU until one that fits is near one that fails; few in long traces."""
_MAX_REQUESTS_OF_BATCHES = 20_000_000
"""Maximum requests of these simulations of a setting, without those of nearby batches: some seconds of one core."""
_BATCH_ORDERS = 3
"""Simulated orders of addresses of a scaled run: the lowest, the highest and a random one."""
_BATCH_PRECISION = 0.01
"""Width of the range of the largest batch, as a fraction, from which on it is not searched further."""
_FIRST_BATCH_STEP = 0.04
"""Distance of the first simulated batch from the upper bound, as a fraction; doubled until a batch fits."""
_NEARBY_BATCHES = range(-12, 0)
"""Simulated batches below the smallest that needs a retry, in units of `_BATCH_PRECISION`."""
_LARGER_BATCHES = 16
"""Simulated batches from the smallest that needs a retry up to the upper bound, in each of two scans."""
_LOW_MARGIN_PER_DOUBLING, _HIGH_MARGIN_PER_DOUBLING = 0.02, 0.05
"""Fraction by which an end is moved outwards, for each doubling between it and the recorded batch.

In measured programs, lower ends were up to 2.2 % a doubling too high, upper ends up to 4.3 % too low: buffers of fixed
size in an operator count as growing.
"""
_MIN_FACTOR = 0.001
"""Smallest simulated batch, as a multiple of the recorded one: if it fails, no batch fits."""
_MAX_FAILING_FACTOR = 0.99
"""Maximum estimate of the batch on a GPU that the recorded batch does not fit on."""
_AMPLE_RATIO = 2
"""Ratio to the used memory from which on a larger device no longer changes the run.

With expandable segments, torch takes the free block with the least room to grow. The last one can grow into the rest of
the address range, nine eighths of the device: at this ratio, by more than any other block's size.
"""
_MAX_REQUESTS = 400_000_000
"""Maximum requests of all simulations of a scan; longer traces are scanned with fewer sizes."""
_MAX_REQUESTS_FOR_BATCH = 2_000_000
"""Maximum requests of a size's simulations for which `fits_on` estimates the largest batch."""
COLUMNS = (
    *("setting", "smallest_bytes", "recommended_bytes", "without_retries_bytes", "peak_active_bytes"),
    *("resolution_bytes", "exceptions_bytes"),
)


@dataclass(frozen=True)
class OnGpu:
    """Outcome of a run on common GPUs of about the same memory, or on the recorded one."""

    names: tuple[str, ...]
    """Names of the GPUs; empty if it is the recorded one and no common GPU has its memory."""
    outcome: Outcome
    """Predicted outcome on the one with the least memory."""
    batch_factors: tuple[float, float] | None = None
    """Range of the estimated largest batch, as multiples of the recorded one; None if there is no estimate.

    Up to the lower end, no simulated batch needs a retry; 0 if all do. Between the ends, batches may fit by retries;
    above the upper end, no simulated batch fits. Both ends have a margin that grows with their distance from 1. The
    upper end is 1 or more if the run fits, else less; 0 if no batch fits.
    """

    @property
    def min_batch_factor(self) -> float | None:
        """Lower end of `batch_factors`."""
        return None if self.batch_factors is None else self.batch_factors[0]

    @property
    def max_batch_factor(self) -> float | None:
        """Upper end of `batch_factors`."""
        return None if self.batch_factors is None else self.batch_factors[1]


@dataclass(frozen=True)
class Fitting:
    """Memory that a run needs under one setting, in bytes of a device. Includes the memory outside torch."""

    setting: Setting
    """Simulated setting."""
    smallest_bytes: int | None
    """Smallest size from which on every tried size fits; None if the largest one fails."""
    resolution_bytes: int
    """Distance to the largest size that failed: the true minimum may be lower by up to this. 0 if all failed."""
    without_retries_bytes: int | None
    """Smallest size from which on torch never released cached memory to serve a request, at every tried size.

    None if it did on the largest one.
    """
    peak_active_bytes: int
    """Lower bound of the size: the peak of active bytes."""
    exceptions_bytes: tuple[int, ...]
    """Sizes that fit although a larger tried size does not."""
    largest_bytes: int
    """Largest tried size."""
    gpus: tuple[OnGpu, ...] = field(repr=False)
    """Outcomes on common GPUs and on the recorded one, the smallest GPU first."""

    @property
    def recommended_bytes(self) -> int | None:
        """`smallest_bytes` plus 5 %, for other orders of the driver's addresses."""
        return None if self.smallest_bytes is None else int(self.smallest_bytes * (1 + MARGIN))


@dataclass(frozen=True, eq=False)
class Fit:
    """Result of `Trace.fit`. Sizes in bytes."""

    device: str
    """Device whose requests were simulated, in torch's spelling."""
    outside_bytes: int
    """Bytes used outside torch."""
    outside_is_known: bool
    """True if the trace or the caller gives `outside_bytes`; False if it is assumed."""
    check: Check
    """Agreement of the model with the recording."""
    device_bytes: int | None
    """Total bytes of the recorded device; None if unknown."""
    ended_out_of_memory: bool
    """True if a failed allocation ended the recorded run: what the program requests after it is unknown."""
    has_memory_fraction: bool
    """True if the recorded run had a memory fraction: it applies to every setting that has none."""
    fittings: tuple[Fitting, ...] = field(repr=False)
    """One result per setting."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per setting.

        Returns:
            Columns: setting, smallest_bytes, recommended_bytes, without_retries_bytes, peak_active_bytes,
            resolution_bytes, exceptions_bytes (a tuple). Sizes in bytes; <NA> where no tried size is enough.
        """
        import pandas as pd

        rows = [
            (
                *(
                    fitting.setting.text,
                    fitting.smallest_bytes,
                    fitting.recommended_bytes,
                    fitting.without_retries_bytes,
                ),
                *(fitting.peak_active_bytes, fitting.resolution_bytes, fitting.exceptions_bytes),
            )
            for fitting in self.fittings
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(COLUMNS[1:4], "Int64"))


def find_fit(
    trace: RecordedTrace, settings: Sequence[str] = (), *, outside: int | None = None, device: str | None = None
) -> Fit:
    """Implement `Trace.fit`."""
    for text in settings:
        parse_setting(text)  # reports an invalid setting before the model runs
    model = Model(trace, device)
    parsed_settings = [model.setting(text) for text in settings or _list_default_settings(model.changes)]
    gpu = gpu_of(model, None, outside)
    search = _Search(model)
    batch, outside_bytes = read_batch_memory(trace, model.device), gpu.outside_bytes
    gpus = _list_gpus(model.device_bytes, outside_bytes)
    fittings = tuple(_fit_setting(search, setting, gpus, outside_bytes, batch) for setting in parsed_settings)
    outside_is_known = outside is not None or model.outside_bytes is not None
    return Fit(
        *(model.device, gpu.outside_bytes, outside_is_known, model.check, model.device_bytes),
        len(model.fatal_failures) > 0,
        model.has_memory_fraction,
        fittings,
    )


def _list_gpus(recorded_bytes: int | None, outside_bytes: int) -> list[Gpu]:
    """Return the common GPUs and, if none has its memory, the recorded one, without a name; the smallest first."""
    gpus = [Gpu(memory.bytes, outside_bytes, memory.names) for memory in GPUS]
    if recorded_bytes is not None and all(gpu.device_bytes != recorded_bytes for gpu in gpus):
        gpus.append(Gpu(recorded_bytes, outside_bytes))
    return sorted(gpus, key=lambda gpu: gpu.device_bytes or 0)


def _list_default_settings(changes: Sequence[str]) -> list[str]:
    """Return the recorded settings, torch's defaults and expandable segments, each once."""
    alternatives = [DEFAULTS] if changes else []
    return [AS_RECORDED, *alternatives, *([EXPANDABLE] if [*changes] != [EXPANDABLE] else [])]


def fits_on(trace: RecordedTrace, memory: int | str | GpuMemory, *, device: str | None = None) -> tuple[OnGpu, Model]:
    """Return the outcome of the run on a GPU with this memory, under the recorded settings, and the model."""
    model = Model(trace, device)
    gpu, search = gpu_of(model, memory, None), _Search(model)
    [result] = search.outcomes([(model.recorded, gpu)])
    if is_too_long_for_batch(model):
        return OnGpu(gpu.names, result), model
    [on_gpu] = _add_batch_factors(search, model.recorded, [result], read_batch_memory(trace, model.device))
    return on_gpu, model


def is_too_long_for_batch(model: Model) -> bool:
    """Return True if `fits_on` does not estimate the largest batch: the search takes too long."""
    return model.requests * len(model.orders()) > _MAX_REQUESTS_FOR_BATCH


def judge_fit(outcome: Outcome, model: Model) -> bool | None:
    """Return whether the run fits; None if the driver's addresses or a missing part of the run decide it."""
    if outcome.fits:
        return True if model.trace.covers_run and not model.fatal_failures else None
    return False if outcome.failing_orders == outcome.orders else None


class _BatchOutcome(NamedTuple):
    """Simulations of a scaled run on one GPU in all orders of addresses."""

    is_clean: bool
    """True if no order fails or needs a retry."""
    fits: bool
    """True if an order does not fail."""


class _Search:
    """Simulations of one model in all orders of addresses."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.orders = model.orders()
        self.batch_orders = self.orders[:_BATCH_ORDERS]
        self.must_serve = model.fatal_failures

    def run(self, cases: Sequence[tuple[Setting, Gpu]]) -> list[list[SimulationResult]]:
        """Return the simulations of each setting and GPU, one per order of addresses, from one pass."""
        simulations = self.model.run(
            [
                self.model.simulation(setting, gpu, order, must_serve=self.must_serve, attempts_failed=False)
                for setting, gpu in cases
                for order in self.orders
            ]
        )
        return _group(simulations, len(self.orders))

    def scale_batch(
        self, setting: Setting, cases: Sequence[tuple[Gpu, float]], growing: Sequence[int]
    ) -> list[_BatchOutcome]:
        """Return the outcome of the run on each GPU if the batch is scaled by each factor."""
        must_serve = self.must_serve
        simulations = self.model.run(
            [
                self.model.simulation(
                    setting, gpu, order, must_serve=must_serve, attempts_failed=False, batch_factor=factor
                )
                for gpu, factor in cases
                for order in self.batch_orders
            ],
            sorted({*growing, *must_serve}),
        )
        results = []
        for (gpu, _), of_case in zip(cases, _group(simulations, len(self.batch_orders)), strict=True):
            failed = [is_failed(simulation, gpu) for simulation in of_case]
            has_retries = any(simulation.retries for simulation in of_case)
            results.append(_BatchOutcome(not has_retries and not any(failed), not all(failed)))
        return results

    def outcomes(self, cases: Sequence[tuple[Setting, Gpu]]) -> list[Outcome]:
        results = self.run(cases)
        return [outcome(self.model, *case, simulations) for case, simulations in zip(cases, results, strict=True)]


def _group(simulations: Sequence[SimulationResult], count: int) -> list[list[SimulationResult]]:
    """Group the simulations of all cases by case, `count` of each."""
    return [[*simulations[start : start + count]] for start in range(0, len(simulations), count)]


class _TriedSizes:
    """Sizes of one setting that were simulated, in bytes for torch."""

    def __init__(self, search: _Search, setting: Setting, outside: int, lower_bound: int) -> None:
        self._search, self._setting, self._outside, self._lower_bound = search, setting, outside, lower_bound
        self.fits: dict[int, bool] = {}
        self._fits_without_retries: dict[int, bool] = {}

    def add(self, gpu: Gpu, simulations: Sequence[SimulationResult]) -> None:
        size = gpu.capacity_bytes or 0
        self.fits[size] = not any(is_failed(simulation, gpu) for simulation in simulations)
        self._fits_without_retries[size] = self.fits[size] and not any(one.retries for one in simulations)

    def run(self, sizes: Iterable[float]) -> None:
        new_sizes = sorted({_round_up(int(size)) for size in sizes} - self.fits.keys())
        gpus = [Gpu(size + self._outside, self._outside) for size in new_sizes]
        for gpu, simulations in zip(gpus, self._search.run([(self._setting, gpu) for gpu in gpus]), strict=True):
            self.add(gpu, simulations)

    def refine(self, count: int) -> None:
        """Try sizes between the largest that fails and the next, and likewise for runs without retries."""
        edges = [(below, above) for below, above in (self.find_edge(), self.find_edge_without_retries()) if above]
        self.run(
            size
            for below, above in {*edges}
            if above - below > _GRANULARITY_BYTES
            for size in np.linspace(below, above, count + 2)[1:-1]
        )

    def find_edge(self) -> tuple[int, int | None]:
        """Return the largest failing size, or the lower bound, and the next tried size; None if there is none."""
        return _find_edge(self.fits, self._lower_bound)

    def find_edge_without_retries(self) -> tuple[int, int | None]:
        """Return the edge between sizes with retries or a failure, and sizes without."""
        return _find_edge(self._fits_without_retries, self._lower_bound)


def _fit_setting(
    search: _Search, setting: Setting, gpus: Sequence[Gpu], outside: int, batch: BatchMemory | None
) -> Fitting:
    model = search.model
    [unlimited] = search.run([(setting, Gpu(None, outside))])
    peak_active = max(simulation.peak_active for simulation in unlimited)
    peak_used = max(simulation.peak_used for simulation in unlimited)
    widening = 1 + model.check.deviation
    lower_bound = _round_down(peak_active) - _GRANULARITY_BYTES
    tried = _TriedSizes(search, setting, outside, lower_bound)
    on_gpus = search.run([(setting, gpu) for gpu in gpus])
    for gpu, simulations in zip(gpus, on_gpus, strict=True):
        tried.add(gpu, simulations)
    count = max(min(_MAX_SIZES_PER_SCAN, _MAX_REQUESTS // max(model.requests * len(search.orders), 1)), 2)
    below_peak = np.linspace(lower_bound, peak_used, count + 1)[1:-1]
    tried.run([*(peak_used * ratio for ratio in _LARGER_SIZES), *below_peak])
    for _ in range(2):
        tried.refine(count // 2)
    below, above = tried.find_edge()
    if above is not None and widening > 1:
        tried.run([above * widening])
        below, above = tried.find_edge()
    smallest = None if above is None else min((size for size in tried.fits if size >= above * widening), default=None)
    _, without_retries = tried.find_edge_without_retries()
    outcomes = [outcome(model, setting, gpu, simulations) for gpu, simulations in zip(gpus, on_gpus, strict=True)]
    return Fitting(
        setting,
        None if smallest is None else smallest + outside,
        0 if above is None else above - below,
        None if without_retries is None else int(without_retries * widening) + outside,
        peak_active + outside,
        tuple(size + outside for size, fits in sorted(tried.fits.items()) if fits and size < below),
        max(tried.fits) + outside,
        tuple(_add_batch_factors(search, setting, outcomes, batch)),
    )


def _add_batch_factors(
    search: _Search, setting: Setting, outcomes: Sequence[Outcome], batch: BatchMemory | None
) -> list[OnGpu]:
    """Return the outcomes with the range of the largest batch, without an estimate if `batch` is None."""
    if batch is None:
        return [OnGpu(result.gpu.names, result) for result in outcomes]
    # Ranges are widened where the model is not exact.
    widening = 1 + search.model.check.deviation
    ranges = [_BatchRange(result, batch.find_upper_bound(result.gpu.capacity_bytes or 0)) for result in outcomes]
    requests = search.model.requests * len(search.batch_orders) * len(ranges)
    rounds = max(min(_MAX_BATCH_ROUNDS, _MAX_REQUESTS_OF_BATCHES // max(requests, 1)), _MIN_BATCH_ROUNDS)
    for _ in range(2):  # again below, if a batch closely below the first that needs a retry does too
        _narrow_ranges(search, setting, [of_gpu for of_gpu in ranges if not of_gpu.is_narrow], batch, rounds)
    count = _LARGER_BATCHES * rounds // _MAX_BATCH_ROUNDS
    _simulate_batches(search, setting, ranges, [of_gpu.list_larger_factors(count) for of_gpu in ranges], batch)
    _simulate_batches(search, setting, ranges, [of_gpu.list_edge_factors(count // 2) for of_gpu in ranges], batch)
    return [
        OnGpu(result.gpu.names, result, of_gpu.widen(widening)) for result, of_gpu in zip(outcomes, ranges, strict=True)
    ]


def _narrow_ranges(
    search: _Search, setting: Setting, ranges: Sequence[_BatchRange], batch: BatchMemory, rounds: int
) -> None:
    for _ in range(rounds):
        wide = [of_gpu for of_gpu in ranges if not of_gpu.is_narrow]
        _simulate_batches(search, setting, wide, [[of_gpu.next_factor] for of_gpu in wide], batch)
    nearby = [of_gpu.list_nearby_factors(_NEARBY_BATCHES[:: _MAX_BATCH_ROUNDS // rounds]) for of_gpu in ranges]
    _simulate_batches(search, setting, ranges, nearby, batch)


def _simulate_batches(
    search: _Search,
    setting: Setting,
    ranges: Sequence[_BatchRange],
    factors: Sequence[Sequence[float]],
    batch: BatchMemory,
) -> None:
    """Add the outcomes of the batches `factors` to each range."""
    cases = [(of_gpu.gpu, factor) for of_gpu, own in zip(ranges, factors, strict=True) for factor in own]
    results = iter(search.scale_batch(setting, cases, batch.growing_events))
    for of_gpu, own in zip(ranges, factors, strict=True):
        for factor in own:
            of_gpu.add(factor, next(results))


class _BatchRange:
    """Range of the largest batch on one GPU, narrowed by simulations. Multiples of the recorded batch."""

    def __init__(self, on_gpu: Outcome, upper_bound: float) -> None:
        self.gpu, self._fits = on_gpu.gpu, on_gpu.fits
        bound = max(upper_bound, 1.0) if on_gpu.fits else min(upper_bound, _MAX_FAILING_FACTOR)
        self._upper_bound = self._first_retry = bound if bound >= _MIN_FACTOR else 0.0
        self._clean: set[float] = set()
        self._failing = {self._upper_bound}
        self._largest_fitting = 1.0 if on_gpu.fits else 0.0
        self._is_clean = on_gpu.fits and on_gpu.retries[1] == 0
        if on_gpu.fits and not self._is_clean:
            self._first_retry = 1.0
        self._retries = 0

    @property
    def _low(self) -> float:
        """Largest batch without a retry below all that need one; 0 if there is none."""
        smallest = 1.0 if self._is_clean else 0.0
        return max((factor for factor in self._clean if factor < self._first_retry), default=smallest)

    @property
    def is_narrow(self) -> bool:
        return self._first_retry - self._low <= _BATCH_PRECISION * self._first_retry

    @property
    def next_factor(self) -> float:
        """Batch to simulate next: close below the first retry, then further below, until none; then halfway."""
        low, step = self._low, _FIRST_BATCH_STEP * (1 << self._retries)
        if low == 0 and step >= 1:
            return _MIN_FACTOR
        return max(self._first_retry * (1 - step), (low + self._first_retry) / 2)

    def list_nearby_factors(self, numbers: Sequence[int]) -> list[float]:
        """Batches to simulate below the smallest that needs a retry: one of them may need a retry too."""
        factors = [self._first_retry * (1 + _BATCH_PRECISION * number) for number in numbers]
        return [factor for factor in factors if factor > (1.0 if self._is_clean else _MIN_FACTOR)]

    def list_larger_factors(self, count: int) -> list[float]:
        """Batches to simulate up to the upper bound, where one may fit although a smaller one does not."""
        return _list_between(max(self._first_retry, _MIN_FACTOR), self._upper_bound, count)

    def list_edge_factors(self, count: int) -> list[float]:
        """Batches to simulate between the largest that fits and the next that does not."""
        return _list_between(max(self._largest_fitting, _MIN_FACTOR), self._high, count)

    @property
    def _high(self) -> float:
        """Smallest simulated batch above the largest that fits; 0 if none fits."""
        larger = [factor for factor in self._failing if factor > self._largest_fitting]
        return min(larger, default=self._upper_bound) if self._largest_fitting else 0.0

    def add(self, factor: float, result: _BatchOutcome) -> None:
        """Add the outcome of a simulated batch."""
        if result.fits:
            self._largest_fitting = max(self._largest_fitting, factor)
        else:
            self._failing.add(factor)
        if result.is_clean:
            self._clean.add(factor)
        elif factor < self._first_retry:
            self._first_retry = factor if factor > _MIN_FACTOR else 0.0
            self._retries += 1

    def widen(self, widening: float) -> tuple[float, float]:
        """Return both ends, `widening` times as far from the estimate and with a margin, on the recorded batch's side.

        The lower end may be below the recorded batch where that needs retries.
        """
        low = self._low / (widening * _margin(self._low, _LOW_MARGIN_PER_DOUBLING))
        high = self._high * widening * _margin(self._high, _HIGH_MARGIN_PER_DOUBLING)
        low, high = (max(low, 1.0) if self._is_clean else low), (high if self._fits else min(high, _MAX_FAILING_FACTOR))
        return min(low, high), high


def _margin(factor: float, per_doubling: float) -> float:
    """Return the factor of an end's margin: 1 at the recorded batch."""
    return 1 + per_doubling * abs(math.log2(factor)) if factor else 1.0


def _list_between(start: float, end: float, count: int) -> list[float]:
    """Return evenly spaced batches between two, without these; none if they are near each other."""
    return np.linspace(start, end, count + 2)[1:-1].tolist() if end - start > _BATCH_PRECISION * start else []


def smallest_gpus(model: Model, outcomes: Sequence[Outcome], max_runs: int) -> list[Gpu | None] | None:
    """Return, for each outcome, the smallest of `GPUS` that the run fits on, like on all larger ones; None if none.

    The memory outside torch stays the same. The result is None if more than `max_runs` simulations would be needed.
    """
    search = _Search(model)
    largest_request = model.trace.replay.max_requested(model.device)
    *gpus, largest = [Gpu(memory.bytes, outcomes[0].gpu.outside_bytes, memory.names) for memory in GPUS]
    # The outcome on a GPU with ample memory shows which other GPUs have ample memory.
    unknown = [index for index, result in enumerate(outcomes) if not _has_ample_memory(result, largest, model)]
    if len(unknown) * len(search.orders) > max_runs:
        return None
    on_large = dict(enumerate(outcomes))
    on_large |= zip(unknown, search.outcomes([(outcomes[index].setting, largest) for index in unknown]), strict=True)
    uncertain = [
        (index, gpu)
        for index, result in on_large.items()
        for gpu in gpus
        if result.fits and not _has_ample_memory(result, gpu, model) and (gpu.capacity_bytes or 0) >= largest_request
    ]
    if (len(unknown) + len(uncertain)) * len(search.orders) > max_runs:
        return None
    simulated = search.outcomes([(outcomes[index].setting, gpu) for index, gpu in uncertain])
    fits = {(index, gpu) for (index, gpu), result in zip(uncertain, simulated, strict=True) if result.fits}
    smallest_fits = []
    for index, result in on_large.items():
        smallest_fit = largest if result.fits else None
        for gpu in reversed(gpus if result.fits else ()):
            if not (_has_ample_memory(result, gpu, model) or (index, gpu) in fits):
                break
            smallest_fit = gpu
        smallest_fits.append(smallest_fit)
    return smallest_fits


def _has_ample_memory(outcome: Outcome, gpu: Gpu, model: Model) -> bool:
    """Return True if the run on this GPU is the one of `outcome`, without a simulation.

    Both GPUs have ample memory, and no memory fraction (a share of the GPU) is set.
    """
    total = outcome.gpu.device_bytes or model.device_bytes or UNLIMITED_BYTES
    return (
        outcome.fits
        and not _has_limit(model, outcome.setting)
        and outcome.retries[1] == 0
        and _AMPLE_RATIO * outcome.device_used_bytes <= min(gpu.device_bytes or 0, total)
    )


def _has_limit(model: Model, setting: Setting) -> bool:
    """Return True if a memory fraction applies: it is a share of the GPU, so that each GPU has another limit."""
    return setting.fraction is not None or model.has_memory_fraction


def _find_edge(is_enough: Mapping[int, bool], lower_bound: int) -> tuple[int, int | None]:
    """Return the largest size that is not enough, or `lower_bound`, and the next tried size; None if there is none."""
    below = max((size for size, enough in is_enough.items() if not enough), default=lower_bound)
    return below, min((size for size in is_enough if size > below), default=None)


def _round_up(size: int) -> int:
    return -(-size // _GRANULARITY_BYTES) * _GRANULARITY_BYTES


def _round_down(size: int) -> int:
    return size // _GRANULARITY_BYTES * _GRANULARITY_BYTES
