"""Smallest memory that a run fits on: `Trace.fit`.

A size is tried as `Trace.what_if` tries it, so both give the same answer for the same memory, whatever the setting.
No size is known to fit without a simulation, not even the peak of reserved bytes without a limit: with expandable
segments, torch's choice of a block depends on the size of the device.

A run that fits on one size need not fit on all larger sizes: a retry changes the layout, and with it what fits later.
So the common GPUs and several sizes up to twice the peak of reserved bytes are tried, then 24 sizes below the peak, and
two scans refine the two edges. From the smallest size on, every tried size fits, in every order of addresses.

What "fits" means: `Outcome.fits`. Failed allocations that the program survived are not tried.

The largest batch on a GPU is searched between batches that fit and batches that fail: the run is simulated with the
requests of activations, inputs and temporaries scaled (`batch.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
_NEARBY_BATCHES = range(-12, 5)
"""Simulated batches around the smallest that fails, in units of `_BATCH_PRECISION`."""
_BATCH_MARGIN = 0.02
"""Fraction added to the upper end: in measured programs, batches up to this much larger than simulated ones ran."""
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
    """Outcome of a run on common GPUs of about the same memory."""

    names: tuple[str, ...]
    """Names of the GPUs."""
    outcome: Outcome
    """Predicted outcome on the one with the least memory."""
    batch_factors: tuple[float, float] | None = None
    """Range of the estimated largest batch, as multiples of the recorded one; None if there is no estimate.

    At the lower end and closely below, each simulated batch fits in every order of addresses; above the upper end, none
    fits in any. Both are 1 or more if the run fits, else less, 0 if no batch fits.
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
    """Outcomes on common GPUs, the smallest GPU first."""

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
    gpus = [Gpu(memory.bytes, outside_bytes, memory.names) for memory in GPUS]
    fittings = tuple(_fit_setting(search, setting, gpus, outside_bytes, batch) for setting in parsed_settings)
    outside_is_known = outside is not None or model.outside_bytes is not None
    return Fit(
        *(model.device, gpu.outside_bytes, outside_is_known, model.check, model.device_bytes),
        len(model.fatal_failures) > 0,
        model.has_memory_fraction,
        fittings,
    )


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

    def count_failing_orders(
        self, setting: Setting, cases: Sequence[tuple[Gpu, float]], growing: Sequence[int]
    ) -> list[int]:
        """Return in how many orders the run fails on each GPU if the batch is scaled by each factor."""
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
        return [
            sum(is_failed(simulation, gpu) for simulation in of_case)
            for (gpu, _), of_case in zip(cases, _group(simulations, len(self.batch_orders)), strict=True)
        ]

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
    for _ in range(2):  # again below, if a batch closely below the first that fails does too
        wide = [of_gpu for of_gpu in ranges if not of_gpu.is_narrow]
        _narrow_ranges(search, setting, wide, batch, rounds)
    return [
        OnGpu(result.gpu.names, result, of_gpu.widen(widening)) for result, of_gpu in zip(outcomes, ranges, strict=True)
    ]


def _narrow_ranges(
    search: _Search, setting: Setting, ranges: Sequence[_BatchRange], batch: BatchMemory, rounds: int
) -> None:
    for _ in range(rounds):
        wide = [of_gpu for of_gpu in ranges if not of_gpu.is_narrow]
        cases = [(of_gpu.gpu, of_gpu.next_factor) for of_gpu in wide]
        failing_orders = search.count_failing_orders(setting, cases, batch.growing_events)
        for of_gpu, (_, factor), count in zip(wide, cases, failing_orders, strict=True):
            of_gpu.add(factor, count)
    nearby = [of_gpu.list_nearby_factors(_NEARBY_BATCHES[:: _MAX_BATCH_ROUNDS // rounds]) for of_gpu in ranges]
    cases = [(of_gpu.gpu, factor) for of_gpu, factors in zip(ranges, nearby, strict=True) for factor in factors]
    counts = iter(search.count_failing_orders(setting, cases, batch.growing_events))
    for of_gpu, factors in zip(ranges, nearby, strict=True):
        of_gpu.add_nearby([(factor, next(counts)) for factor in factors], len(search.batch_orders))


class _BatchRange:
    """Range of the largest batch on one GPU, narrowed by simulations. Multiples of the recorded batch."""

    def __init__(self, on_gpu: Outcome, upper_bound: float) -> None:
        self.gpu, self._fits = on_gpu.gpu, on_gpu.fits
        self._low = 1.0 if on_gpu.fits else 0.0
        bound = max(upper_bound, 1.0) if on_gpu.fits else min(upper_bound, _MAX_FAILING_FACTOR)
        self._upper_bound = self._lowest_failing = bound if bound >= _MIN_FACTOR else 0.0
        self._high, self._failures = 0.0, 0

    @property
    def is_narrow(self) -> bool:
        return self._lowest_failing - self._low <= _BATCH_PRECISION * self._lowest_failing

    @property
    def next_factor(self) -> float:
        """Batch to simulate next: close below the upper bound, then further below, until one fits; then halfway."""
        step = _FIRST_BATCH_STEP * (1 << self._failures)
        if self._low == 0 and step >= 1:
            return _MIN_FACTOR
        return max(self._lowest_failing * (1 - step), (self._low + self._lowest_failing) / 2)

    def list_nearby_factors(self, numbers: Sequence[int]) -> list[float]:
        """Batches to simulate around the smallest that fails, ascending: one below may fail, one above may fit."""
        factors = [self._lowest_failing * (1 + _BATCH_PRECISION * number) for number in numbers]
        smallest = 1.0 if self._fits else _MIN_FACTOR
        return [factor for factor in factors if smallest < factor < self._upper_bound]

    def add(self, factor: float, failing_orders: int) -> None:
        """Add the result of a simulation with the batch `next_factor`."""
        if failing_orders == 0:
            self._low = factor
        else:
            self._lowest_failing = factor if factor > _MIN_FACTOR else 0.0
            self._failures += 1

    def add_nearby(self, nearby: Sequence[tuple[float, int]], orders: int) -> None:
        """Add `list_nearby_factors`, each with the number of orders in which it fails."""
        largest_fitting = max((factor for factor, failing in nearby if failing < orders), default=0.0)
        high = max(self._lowest_failing, largest_fitting * (1 + _BATCH_PRECISION)) * (1 + _BATCH_MARGIN)
        self._high = max(self._high, min(high, self._upper_bound))
        self._lowest_failing = min((factor for factor, failing in nearby if failing), default=self._lowest_failing)
        if self._low > self._lowest_failing:
            smaller = [factor for factor, _ in nearby if factor < self._lowest_failing]
            self._low, self._failures = max(smaller, default=1.0 if self._fits else 0.0), 0

    def widen(self, widening: float) -> tuple[float, float]:
        """Return both ends, `widening` times as far from the estimate, on the recorded batch's side."""
        low, high = self._low / widening, self._high * widening
        return (max(low, 1.0), high) if self._fits else (low, min(high, _MAX_FAILING_FACTOR))


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
