"""The same run under other settings or on another GPU: `Trace.what_if`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..._replay import SimulationFailure, SimulationResult
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from .model import USUAL_OUTSIDE, Check, Gpu, Model
from .settings import RECORDED, SENSIBLE, Setting, parse_setting

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *(
        "setting",
        "fits",
        "min_peak_reserved_bytes",
        "max_peak_reserved_bytes",
        "device_used_bytes",
        "retries_low",
        "retries_high",
    ),
    *("driver_calls", "refusals_served", "refused_seq", "refused_bytes"),
)


@dataclass(frozen=True)
class Refused:
    """A request that would not have been served. What the program would have done then is not known."""

    seq: int
    """Its event in the trace, in which it was served."""
    requested_bytes: int
    """Bytes."""
    needed_bytes: int
    """Bytes that torch would have asked the driver for."""
    reserved_bytes: int
    """Bytes that torch would have had by then."""
    allocated_bytes: int
    """Bytes of that in live blocks."""
    site: Site
    """The line that makes it."""
    stack_id: int
    """As in `Trace.frames`."""


@dataclass(frozen=True)
class Outcome:
    """What a run comes to. Ranges (least, most) are over orders of the driver's addresses."""

    setting: Setting
    """What was tried."""
    gpu: Gpu
    """On what."""
    peak_reserved_bytes: tuple[int, int]
    """Bytes; up to the request that is refused, if one is."""
    device_used_bytes: int
    """The most bytes of the device that are used, with what is outside torch."""
    retries: tuple[int, int]
    """Times that torch had to give all cached memory back, and wait for the device, to serve a request."""
    driver_calls: tuple[int, int]
    """Segments made or mapped."""
    orders: int
    """Orders of addresses that were tried."""
    refused_orders: int
    """Those in which a request was refused that the recorded run got."""
    refused: Refused | None
    """The earliest of them."""
    served: tuple[int, ...]
    """Events of requests that the recorded run was refused, and that would have been served in each order."""
    refused_again: tuple[int, ...]
    """Those that would not have been, in one order at least."""

    @property
    def fits(self) -> bool:
        """Whether no request would have been refused, in any order, but those that were refused in the recording."""
        return self.refused_orders == 0

    @property
    def serves_all(self) -> bool:
        """Whether those would have been served too."""
        return self.fits and not self.refused_again


@dataclass(frozen=True, eq=False)
class WhatIf:
    """See `Trace.what_if`. Sizes in bytes."""

    device: str
    """Whose requests; torch's spelling."""
    gpu: Gpu
    """What it would have run on."""
    check: Check
    """How much of the recording the model reproduces."""
    outside_is_known: bool
    """Whether the trace, or who asked, says what is used outside torch; else it is assumed."""
    inherited: bool
    """The recording began with memory in use, which keeps the layout that it had then."""
    outcomes: tuple[Outcome, ...] = field(repr=False)
    """The first as recorded, then one a setting: as they were asked for or, if none was, the best first."""

    def to_frame(self) -> pd.DataFrame:
        """Return a row an outcome. Sizes in bytes; refused_seq and refused_bytes <NA> where nothing is refused."""
        import pandas as pd

        rows = [
            (
                *(one.setting.text, one.fits, *one.peak_reserved_bytes, one.device_used_bytes, *one.retries),
                *(one.driver_calls[1], len(one.served)),
                *((one.refused.seq, one.refused.requested_bytes) if one.refused else (None, None)),
            )
            for one in self.outcomes
        ]
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        return table.astype({"refused_seq": "Int64", "refused_bytes": "Int64"})


def predict(
    trace: RecordedTrace,
    settings: Sequence[str] = (),
    *,
    memory: int | None = None,
    outside: int | None = None,
    device: str | None = None,
) -> WhatIf:
    """See `Trace.what_if`."""
    asked = [parse_setting(text) for text in settings]
    tried = asked or [parse_setting(text) for text in SENSIBLE]
    return predict_of(Model(trace, device), tried, memory=memory, outside=outside, is_ranked=not asked)


def predict_of(
    model: Model, tried: Sequence[Setting], *, memory: int | None = None, outside: int | None = None, is_ranked: bool
) -> WhatIf:
    """The same of a model. is_ranked: the best of `tried` comes first."""
    gpu = gpu_of(model, memory, outside)
    first, *others = outcomes(model, [RECORDED, *tried], gpu)
    if is_ranked:
        others.sort(key=rank)
    return WhatIf(
        model.device,
        gpu,
        model.check,
        outside is not None or model.outside_bytes is not None,
        model.inherited > 0,
        (first, *others),
    )


def gpu_of(model: Model, memory: int | None, outside: int | None) -> Gpu:
    """A GPU of so much memory (None: the recorded one), of which so much is used outside torch (None: as the trace
    says, else what is usual)."""
    if outside is None:
        outside = model.outside_bytes
    return Gpu(memory if memory is not None else model.device_bytes, USUAL_OUTSIDE if outside is None else outside)


def rank(outcome: Outcome) -> tuple[bool, int, int, int]:
    """By which of two is better: the one that serves all, then with less memory, fewer retries and calls."""
    return not outcome.serves_all, outcome.peak_reserved_bytes[1], outcome.retries[1], outcome.driver_calls[1]


def outcomes(model: Model, settings: Sequence[Setting], gpu: Gpu) -> list[Outcome]:
    """What each setting comes to on the GPU; one pass over the trace."""
    orders = model.orders()
    results = model.run([model.simulation(setting, gpu, order) for setting in settings for order in orders])
    return [
        outcome(model, setting, gpu, results[number * len(orders) : (number + 1) * len(orders)])
        for number, setting in enumerate(settings)
    ]


def outcome(model: Model, setting: Setting, gpu: Gpu, simulations: Sequence[SimulationResult]) -> Outcome:
    """Of the simulations of one setting, an order of addresses each."""
    wider = model.check.deviation
    peaks = [simulation.peak_reserved for simulation in simulations]
    refused = [simulation.refusal for simulation in simulations if simulation.refusal is not None]
    first = min(refused, key=lambda refusal: refusal.seq, default=None)
    served = set.intersection(*(set(simulation.served) for simulation in simulations))
    again = {seq for simulation in simulations for seq in simulation.refused_again}
    most = int(max(peaks) * (1 + wider))
    return Outcome(
        setting=setting,
        gpu=gpu,
        peak_reserved_bytes=(int(min(peaks) * (1 - wider)), most),
        device_used_bytes=max(most, max(simulation.peak_used for simulation in simulations)) + gpu.outside_bytes,
        retries=_range(simulation.retries for simulation in simulations),
        driver_calls=_range(simulation.taken for simulation in simulations),
        orders=len(simulations),
        refused_orders=len(refused),
        refused=None if first is None else _refused(model.trace, first),
        served=tuple(sorted(served)),
        refused_again=tuple(sorted(again)),
    )


def _range(numbers: Iterable[int]) -> tuple[int, int]:
    found = list(numbers)
    return min(found), max(found)


def _refused(trace: RecordedTrace, refusal: SimulationFailure) -> Refused:
    [events] = trace.iter_events(Range(refusal.seq, refusal.seq + 1))
    stack = int(events["forward_stack_id"][0] or events["stack_id"][0])
    return Refused(
        refusal.seq,
        refusal.requested,
        refusal.needed,
        refusal.reserved,
        refusal.allocated,
        Site.of_stack(trace.stacks, stack),
        stack,
    )
