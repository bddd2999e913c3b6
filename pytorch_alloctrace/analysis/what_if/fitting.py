"""The smallest memory that a run fits on: `Trace.fit`.

Whether a run fits is not monotone in the memory: a retry at one size changes the layout, and so what fits later. So
sizes are scanned, first over the whole span, from what was active at once to what torch reserves without a limit, then
between the largest that fails and the one above. What counts as the smallest is the size from which on all that were
tried fit, in every order of addresses.

A request that ended the recorded run in out of memory has to be served, too; those that the program survived, and that
it may make for no other reason than to find out how much there is, are left out, as are those that no GPU serves.
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
from .settings import AS_RECORDED, Setting, parse_setting

if TYPE_CHECKING:
    import pandas as pd

MARGIN = 0.05
"""What a program should have more than it fits on: it moves by some percent with the addresses that the driver gives,
which the next run will have others of."""
GIB = 1 << 30
GPUS = (
    ("24 GB (RTX 4090, L4, A10)", int(21.9 * GIB)),
    ("40 GB (A100)", int(39.4 * GIB)),
    ("48 GB (L40S, A6000)", int(44.3 * GIB)),
    ("80 GB (A100, H100)", int(79.1 * GIB)),
    ("96 GB (H100 NVL, GH200)", int(93.0 * GIB)),
    ("141 GB (H200)", int(139.7 * GIB)),
)
"""Common GPUs, and the memory that CUDA reports of them: `total_memory` of torch's device properties, "total capacity"
in its message on out of memory. It is less than the name says, since error correction and the driver keep some of what
is on the GPU for themselves; what lies outside torch (`GPU.outside`) still has to come off. Of the GPUs of one entry
that which has the least, with error correction on, rounded down. These are what users of such GPUs have reported, not
measured here; drivers and virtual machines move them by about a percent."""
TRIED = (AS_RECORDED, "expandable_segments:True")
"""Where no setting is asked for."""
_UNIT = 2 << 20
_SIZES = 24
"""That are tried in a scan."""
_MOST_WORK = 400_000_000
"""Requests that a scan runs, all simulations together; for traces of many, fewer sizes and orders are tried."""
COLUMNS = (
    *("setting", "smallest_bytes", "recommended_bytes", "without_retries_bytes", "peak_active_bytes"),
    *("resolution_bytes", "exceptions_bytes"),
)


@dataclass(frozen=True)
class OnGpu:
    """A run on a common GPU."""

    name: str
    """The GPU."""
    outcome: Outcome
    """What it comes to there."""


@dataclass(frozen=True)
class Fitting:
    """What a run needs under one setting. In bytes of a device, with what lies outside torch."""

    setting: Setting
    """What was tried."""
    smallest_bytes: int
    """From here on it fits, at every size that was tried."""
    resolution_bytes: int
    """How far apart the sizes were there: it may fit on so much less."""
    without_retries_bytes: int
    """What torch takes where it need not give anything back: the peak of reserved, in the worst order of addresses."""
    peak_active_bytes: int
    """Fewer cannot be enough: the most that was in use at once."""
    exceptions_bytes: tuple[int, ...]
    """Smaller sizes that happen to fit, though others between them and `smallest_bytes` do not."""
    gpus: tuple[OnGpu, ...] = field(repr=False)
    """What it comes to on common GPUs, the smallest first."""

    @property
    def recommended_bytes(self) -> int:
        """The smallest size plus 5 %, for other orders of the driver's addresses."""
        return int(self.smallest_bytes * (1 + MARGIN))


@dataclass(frozen=True, eq=False)
class Fit:
    """See `Trace.fit`. Sizes in bytes."""

    device: str
    """Whose requests; torch's spelling."""
    outside_bytes: int
    """What is used outside torch."""
    outside_is_known: bool
    """Whether the trace, or who asked, says so; else it is assumed."""
    check: Check
    """How much of the recording the model reproduces."""
    device_bytes: int | None
    """The recorded device's memory; None if unknown."""
    fittings: tuple[Fitting, ...] = field(repr=False)
    """One a setting."""

    def to_frame(self) -> pd.DataFrame:
        """Return a row a setting; sizes in bytes, exceptions a tuple of them."""
        import pandas as pd

        rows = [
            (
                *(one.setting.text, one.smallest_bytes, one.recommended_bytes, one.without_retries_bytes),
                *(one.peak_active_bytes, one.resolution_bytes, one.exceptions_bytes),
            )
            for one in self.fittings
        ]
        return pd.DataFrame(rows, columns=list(COLUMNS))


def find_fit(
    trace: RecordedTrace,
    settings: Sequence[str] = (),
    *,
    outside: int | None = None,
    device: str | None = None,
) -> Fit:
    """See `Trace.fit`."""
    tried = [parse_setting(text) for text in settings or TRIED]
    model = Model(trace, device)
    gpu = gpu_of(model, None, outside)
    search = _Search(model)
    fittings = tuple(_fitting(search, setting, gpu.outside_bytes) for setting in tried)
    known = outside is not None or model.outside_bytes is not None
    return Fit(model.device, gpu.outside_bytes, known, model.check, model.device_bytes, fittings)


def fits_on(trace: RecordedTrace, memory: int, *, device: str | None = None) -> tuple[Outcome, Check]:
    """What the run comes to on a GPU of so many bytes, under its own settings."""
    model = Model(trace, device)
    gpu = gpu_of(model, memory, None)
    [found] = _Search(model).outcomes([(parse_setting(AS_RECORDED), gpu)])
    return found, model.check


class _Search:
    """The runs of one model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.orders = model.orders()
        requests = find_failed_allocations(model.trace, device=model.device)
        self.must_serve = [one.seq for one in requests if one.outcome == ENDED and one.requested_bytes <= GPUS[-1][1]]

    def run(self, tried: Sequence[tuple[Setting, Gpu]]) -> list[list[SimulationResult]]:
        """For each setting on a GPU, a simulation an order; one pass."""
        simulations = self.model.run(
            [
                self.model.simulation(setting, gpu, order, must_serve=self.must_serve)
                for setting, gpu in tried
                for order in self.orders
            ]
        )
        count = len(self.orders)
        return [simulations[at : at + count] for at in range(0, len(simulations), count)]

    def outcomes(self, tried: Sequence[tuple[Setting, Gpu]]) -> list[Outcome]:
        """What the run comes to with each."""
        found = self.run(tried)
        return [outcome(self.model, *one, simulations) for one, simulations in zip(tried, found, strict=True)]


def _fitting(search: _Search, setting: Setting, outside: int) -> Fitting:
    model = search.model
    [unlimited] = search.run([(setting, Gpu(None, outside))])
    wider = 1 + model.check.deviation
    active = max(simulation.peak_active for simulation in unlimited)
    most = int(max(simulation.peak_used for simulation in unlimited) * wider)
    tried: dict[int, bool] = {_up(most): True}
    below, above = _down(active) - _UNIT, _up(most)
    sizes = max(min(_SIZES, _MOST_WORK // max(model.requests * len(search.orders), 1)), 2)
    for _ in range(2):
        if above - below <= _UNIT:
            break
        wanted = sorted({_up(int(size)) for size in np.linspace(below, above, sizes + 2)[1:-1]} - tried.keys())
        found = search.run([(setting, Gpu(size + outside, outside)) for size in wanted])
        tried |= {
            size: not any(simulation.refusal for simulation in simulations)
            for size, simulations in zip(wanted, found, strict=True)
        }
        below, above = _edge(tried, below)
    smallest = int(above * wider)
    outcomes = search.outcomes([(setting, Gpu(total, outside)) for _, total in GPUS])
    return Fitting(
        setting,
        smallest + outside,
        above - below,
        most + outside,
        active + outside,
        tuple(size + outside for size, fits in sorted(tried.items()) if fits and size < above),
        tuple(OnGpu(name, found) for (name, _), found in zip(GPUS, outcomes, strict=True)),
    )


def smallest_cards(model: Model, found: Sequence[Outcome], most_runs: int) -> list[tuple[str, Gpu] | None] | None:
    """For each of these outcomes, the smallest of `CARDS` from which on the run fits on all of them, with as much
    outside torch; None where the largest is not enough. None for all if it took more than `most_runs` runs to say."""
    search = _Search(model)
    requested = model.trace.replay.most_requested(model.device)
    gpus = [[(name, Gpu(total, one.gpu.outside_bytes)) for name, total in GPUS] for one in found]
    unclear = [
        (at, name, gpu)
        for at, one in enumerate(found)
        for name, gpu in gpus[at]
        if not _has_plenty(one, gpu, search) and (gpu.capacity_bytes or 0) >= requested
    ]
    if len(unclear) * len(search.orders) > most_runs:
        return None
    tried = search.outcomes([(found[at].setting, gpu) for at, _, gpu in unclear])
    fits = {(at, name) for (at, name, _), one in zip(unclear, tried, strict=True) if one.fits}
    smallest = []
    for at, one in enumerate(found):
        enough: tuple[str, Gpu] | None = None
        for name, gpu in reversed(gpus[at]):
            if not (_has_plenty(one, gpu, search) or (at, name) in fits):
                break
            enough = name, gpu
        smallest.append(enough)
    return smallest


def _has_plenty(one: Outcome, gpu: Gpu, search: _Search) -> bool:
    """Whether a run is never refused anything on this GPU, since it needs less wherever it was tried. Of a share of
    the device, that is not said."""
    serves_all = one.serves_all and (one.gpu.device_bytes is not None or not search.must_serve)
    has_limit = one.setting.fraction is not None or search.model.trace.kind_counts.get("memory_fraction", 0) > 0
    return serves_all and not has_limit and one.retries[1] == 0 and (gpu.device_bytes or 0) >= one.device_used_bytes


def _edge(tried: dict[int, bool], least: int) -> tuple[int, int]:
    """The largest size that fails (or `least`), and the one that was tried next above it."""
    failing = max((size for size, fits in tried.items() if not fits), default=least)
    return failing, min(size for size in tried if size > failing)


def _up(size: int) -> int:
    return -(-size // _UNIT) * _UNIT


def _down(size: int) -> int:
    return size // _UNIT * _UNIT
