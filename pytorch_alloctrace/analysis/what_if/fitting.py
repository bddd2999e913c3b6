"""Smallest memory that a run fits on: `Trace.fit`.

A run that fits on one size need not fit on all larger sizes: a retry changes the layout, and with it what fits later.
So two scans try a range of sizes: from the peak of active bytes to the peak of reserved bytes without a limit, then
from the largest size that failed to the next tried size. From the smallest size on, every tried size fits, in every
order of addresses.

A failed allocation that ended the recorded run must be served too, unless it is larger than the largest GPU. A failure
that the program survived need not: a program may request memory only to find out how much there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..._replay import SimulationResult
from ...reading.recorded import RecordedTrace
from ..free_memory.failed_allocations import ENDED, find_failed_allocations
from .model import Check, Gpu, Model
from .prediction import Outcome, gpu_of, outcome
from .settings import AS_RECORDED, DEFAULTS, EXPANDABLE, Setting, parse_setting

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.05
"""Fraction to add to the smallest size: the need varies by some percent with the addresses from the driver."""
GIB = 1 << 30
GPUS = (
    ("24 GB (RTX 4090, L4, A10)", int(21.9 * GIB)),
    ("40 GB (A100)", int(39.4 * GIB)),
    ("48 GB (L40S, A6000)", int(44.3 * GIB)),
    ("80 GB (A100, H100)", int(79.1 * GIB)),
    ("96 GB (H100 NVL, GH200)", int(93.0 * GIB)),
    ("141 GB (H200)", int(139.7 * GIB)),
)
"""Common GPUs with the bytes that CUDA reports: `total_memory` of torch's device properties.

CUDA reports less than the nominal size, since error correction and the driver use memory. Each value is of the smallest
GPU of its entry with error correction on, rounded down, as users reported it, not measured; drivers and virtual
machines change it by about a percent. It includes the memory outside torch (`Gpu.outside_bytes`).
"""
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
    """Outcome of a run on a common GPU."""

    name: str
    """Name of the GPU."""
    outcome: Outcome
    """Predicted outcome on this GPU."""


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
    return Fit(model.device, gpu.outside_bytes, outside_is_known, model.check, model.device_bytes, fittings)


def _list_default_settings(changes: Sequence[str]) -> list[str]:
    """Return the recorded settings, torch's defaults and expandable segments, each once."""
    alternatives = [DEFAULTS] if changes else []
    return [AS_RECORDED, *alternatives, *([EXPANDABLE] if [*changes] != [EXPANDABLE] else [])]


def fits_on(trace: RecordedTrace, memory: int, *, device: str | None = None) -> tuple[Outcome, Check]:
    """Return the outcome of the run on a GPU of `memory` bytes, under the recorded settings."""
    model = Model(trace, device)
    gpu = gpu_of(model, memory, None)
    [result] = _Search(model).outcomes([(model.recorded, gpu)])
    return result, model.check


class _Search:
    """Simulations of one model in all orders of addresses."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.orders = model.orders()
        failures = find_failed_allocations(model.trace, device=model.device)
        self.must_serve = [
            failure.seq for failure in failures if failure.outcome == ENDED and failure.requested_bytes <= GPUS[-1][1]
        ]

    def run(self, cases: Sequence[tuple[Setting, Gpu]]) -> list[list[SimulationResult]]:
        """Return the simulations of each setting and GPU, one per order of addresses, from one pass."""
        simulations = self.model.run(
            [
                self.model.simulation(setting, gpu, order, must_serve=self.must_serve)
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
    outcomes = search.outcomes([(setting, Gpu(total, outside)) for _, total in GPUS])
    return Fitting(
        setting,
        smallest + outside,
        above - below,
        peak_used + outside,
        peak_active + outside,
        tuple(size + outside for size, fits in sorted(fits_by_size.items()) if fits and size < above),
        tuple(OnGpu(name, prediction) for (name, _), prediction in zip(GPUS, outcomes, strict=True)),
    )


def smallest_gpus(model: Model, outcomes: Sequence[Outcome], max_runs: int) -> list[tuple[str, Gpu] | None] | None:
    """Return, for each outcome, the smallest of `GPUS` that the run fits on, like on all larger ones; None if none.

    The memory outside torch stays the same. The result is None if more than `max_runs` simulations would be needed.
    """
    search = _Search(model)
    largest_request = model.trace.replay.max_requested(model.device)
    gpus = [[(name, Gpu(total, candidate.gpu.outside_bytes)) for name, total in GPUS] for candidate in outcomes]
    uncertain = [
        (index, name, gpu)
        for index, candidate in enumerate(outcomes)
        for name, gpu in gpus[index]
        if not _has_ample_memory(candidate, gpu, search) and (gpu.capacity_bytes or 0) >= largest_request
    ]
    if len(uncertain) * len(search.orders) > max_runs:
        return None
    simulated = search.outcomes([(outcomes[index].setting, gpu) for index, _, gpu in uncertain])
    fits = {(index, name) for (index, name, _), result in zip(uncertain, simulated, strict=True) if result.fits}
    smallest_fits = []
    for index, candidate in enumerate(outcomes):
        smallest_fit: tuple[str, Gpu] | None = None
        for name, gpu in reversed(gpus[index]):
            if not (_has_ample_memory(candidate, gpu, search) or (index, name) in fits):
                break
            smallest_fit = name, gpu
        smallest_fits.append(smallest_fit)
    return smallest_fits


def _has_ample_memory(outcome: Outcome, gpu: Gpu, search: _Search) -> bool:
    """Return True if no simulation needed more than this GPU has and no memory fraction (a share of the GPU) is set."""
    serves_all = outcome.serves_all and (outcome.gpu.device_bytes is not None or not search.must_serve)
    has_limit = outcome.setting.fraction is not None or search.model.trace.kind_counts.get("memory_fraction", 0) > 0
    return (
        serves_all
        and not has_limit
        and outcome.retries[1] == 0
        and (gpu.device_bytes or 0) >= outcome.device_used_bytes
    )


def _find_edge(fits_by_size: dict[int, bool], lower_bound: int) -> tuple[int, int]:
    """Return the largest failing size (or `lower_bound`) and the next tried size above it."""
    failing = max((size for size, fits in fits_by_size.items() if not fits), default=lower_bound)
    return failing, min(size for size in fits_by_size if size > failing)


def _round_up(size: int) -> int:
    return -(-size // _GRANULARITY_BYTES) * _GRANULARITY_BYTES


def _round_down(size: int) -> int:
    return size // _GRANULARITY_BYTES * _GRANULARITY_BYTES
