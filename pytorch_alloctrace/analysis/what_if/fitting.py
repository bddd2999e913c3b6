"""Smallest memory that a run fits on: `Trace.fit`.

A run that fits on one size need not fit on all larger sizes: a retry changes the layout, and with it what fits later.
So two scans try a range of sizes: from the peak of active bytes to the peak of reserved bytes without a limit, then
from the largest size that failed to the next tried size. From the smallest size on, every tried size fits, in every
order of addresses.

What "fits" means: `Outcome.fits`. Failed allocations that the program survived are not tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..._replay import SimulationResult
from ...gpus import GPUS, GpuMemory
from ...reading.recorded import RecordedTrace
from .model import Check, Gpu, Model
from .prediction import Outcome, gpu_of, outcome
from .settings import AS_RECORDED, DEFAULTS, EXPANDABLE, Setting, parse_setting

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.05
"""Fraction to add to the smallest size: the need varies by some percent with the addresses from the driver."""
_GRANULARITY_BYTES = 2 << 20
_MAX_SIZES_PER_SCAN = 24
_MAX_REQUESTS = 400_000_000
"""Maximum requests of all simulations of a scan; longer traces are scanned with fewer sizes."""
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


@dataclass(frozen=True)
class Fitting:
    """Memory that a run needs under one setting, in bytes of a device. Includes the memory outside torch."""

    setting: Setting
    """Simulated setting."""
    smallest_bytes: int
    """Smallest size from which on every tried size fits."""
    resolution_bytes: int
    """Distance to the largest size that failed: the true minimum may be lower by up to this."""
    without_retries_bytes: int
    """Size at which torch never has to release cached memory.

    It is the peak of reserved bytes in the worst order of addresses.
    """
    peak_active_bytes: int
    """Lower bound of the size: the peak of active bytes."""
    exceptions_bytes: tuple[int, ...]
    """Sizes that fit although a size between them and `smallest_bytes` does not."""
    gpus: tuple[OnGpu, ...] = field(repr=False)
    """Outcomes on common GPUs, the smallest GPU first."""

    @property
    def recommended_bytes(self) -> int:
        """`smallest_bytes` plus 5 %, for other orders of the driver's addresses."""
        return int(self.smallest_bytes * (1 + MARGIN))


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
            resolution_bytes, exceptions_bytes (a tuple). Sizes in bytes.
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
        return pd.DataFrame(rows, columns=list(COLUMNS))


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
    fittings = tuple(_fit_setting(search, setting, gpu.outside_bytes) for setting in parsed_settings)
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


def fits_on(trace: RecordedTrace, memory: int | str | GpuMemory, *, device: str | None = None) -> tuple[Outcome, Model]:
    """Return the outcome of the run on a GPU with this memory, under the recorded settings, and the model."""
    model = Model(trace, device)
    gpu = gpu_of(model, memory, None)
    [result] = _Search(model).outcomes([(model.recorded, gpu)])
    return result, model


def judge_fit(outcome: Outcome, model: Model) -> bool | None:
    """Return whether the run fits; None if the driver's addresses or a missing part of the run decide it."""
    if outcome.fits:
        return True if model.trace.integrity.is_complete and not model.fatal_failures else None
    return False if outcome.failing_orders == outcome.orders else None


class _Search:
    """Simulations of one model in all orders of addresses."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.orders = model.orders()
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
        count = len(self.orders)
        return [simulations[start : start + count] for start in range(0, len(simulations), count)]

    def outcomes(self, cases: Sequence[tuple[Setting, Gpu]]) -> list[Outcome]:
        results = self.run(cases)
        return [outcome(self.model, *case, simulations) for case, simulations in zip(cases, results, strict=True)]


def _fit_setting(search: _Search, setting: Setting, outside: int) -> Fitting:
    model = search.model
    [unlimited] = search.run([(setting, Gpu(None, outside))])
    widening = 1 + model.check.deviation
    peak_active = max(simulation.peak_active for simulation in unlimited)
    peak_used = int(max(simulation.peak_used for simulation in unlimited) * widening)
    fits_by_size: dict[int, bool] = {_round_up(peak_used): True}
    below, above = _round_down(peak_active) - _GRANULARITY_BYTES, _round_up(peak_used)
    sizes = max(min(_MAX_SIZES_PER_SCAN, _MAX_REQUESTS // max(model.requests * len(search.orders), 1)), 2)
    for _ in range(2):
        if above - below <= _GRANULARITY_BYTES:
            break
        new_sizes = sorted(
            {_round_up(int(size)) for size in np.linspace(below, above, sizes + 2)[1:-1]} - fits_by_size.keys()
        )
        results = search.run([(setting, Gpu(size + outside, outside)) for size in new_sizes])
        fits_by_size |= {
            size: not any(simulation.failure for simulation in simulations)
            for size, simulations in zip(new_sizes, results, strict=True)
        }
        below, above = _find_edge(fits_by_size, below)
    smallest = int(above * widening)
    gpus = [Gpu(memory.bytes, outside, memory.names) for memory in GPUS]
    # On a GPU with ample memory, the run is the one without a limit.
    ample = [not _has_limit(model, setting) and (gpu.capacity_bytes or 0) >= peak_used for gpu in gpus]
    simulated = iter(
        search.outcomes([(setting, gpu) for gpu, is_ample in zip(gpus, ample, strict=True) if not is_ample])
    )
    outcomes = [
        outcome(model, setting, gpu, unlimited) if is_ample else next(simulated)
        for gpu, is_ample in zip(gpus, ample, strict=True)
    ]
    return Fitting(
        setting,
        smallest + outside,
        above - below,
        peak_used + outside,
        peak_active + outside,
        tuple(size + outside for size, fits in sorted(fits_by_size.items()) if fits and size < above),
        tuple(OnGpu(prediction.gpu.names, prediction) for prediction in outcomes),
    )


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
    """Return True if no simulation needed more than this GPU has and no memory fraction (a share of the GPU) is set."""
    return (
        outcome.fits
        and not _has_limit(model, outcome.setting)
        and outcome.retries[1] == 0
        and (gpu.device_bytes or 0) >= outcome.device_used_bytes
    )


def _has_limit(model: Model, setting: Setting) -> bool:
    """Return True if a memory fraction applies: it is a share of the GPU, so that each GPU has another limit."""
    return setting.fraction is not None or model.has_memory_fraction


def _find_edge(fits_by_size: dict[int, bool], lower_bound: int) -> tuple[int, int]:
    """Return the largest failing size (or `lower_bound`) and the next tried size above it."""
    failing = max((size for size, fits in fits_by_size.items() if not fits), default=lower_bound)
    return failing, min(size for size in fits_by_size if size > failing)


def _round_up(size: int) -> int:
    return -(-size // _GRANULARITY_BYTES) * _GRANULARITY_BYTES


def _round_down(size: int) -> int:
    return size // _GRANULARITY_BYTES * _GRANULARITY_BYTES
