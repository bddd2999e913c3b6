"""Predictions of the same run under other settings or on another GPU: `Trace.what_if`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..._replay import SimulationFailure, SimulationResult
from ...gpus import GpuMemory, parse_gpu_memory
from ...reading.positions import Range
from ...reading.recorded import RecordedTrace
from ...reading.sites import Site
from .model import DEFAULT_OUTSIDE_BYTES, Check, Gpu, Model
from .settings import DEFAULTS, Setting, list_candidates, list_without_one, parse_setting

if TYPE_CHECKING:
    import pandas as pd

MIN_SAVED_SHARE = 0.05
"""Minimum share of the recorded peak of reserved bytes that a setting must save to be recommended."""
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
    *("driver_calls", "failures_served", "failed_seq", "failed_bytes"),
)


@dataclass(frozen=True)
class SimulatedFailure:
    """A request that fails in a simulation. What the program would do next is unknown."""

    seq: int
    """Event of the request in the trace, where it was served."""
    requested_bytes: int
    """Requested bytes."""
    needed_bytes: int
    """Bytes that torch would have requested from the driver."""
    reserved_bytes: int
    """Bytes that torch would have reserved by then."""
    allocated_bytes: int
    """Bytes of `reserved_bytes` in live blocks."""
    site: Site
    """Line that makes the request."""
    stack_id: int
    """Stack of the request, as in `Trace.frames`."""


@dataclass(frozen=True)
class Outcome:
    """Predicted outcome of a run. Ranges (minimum, maximum) are over orders of the driver's addresses."""

    setting: Setting
    """Simulated setting."""
    gpu: Gpu
    """Simulated GPU."""
    peak_reserved_bytes: tuple[int, int]
    """Range of the peak of reserved bytes, up to the first failed request if there is one."""
    device_used_bytes: int
    """Maximum bytes of the device in use, including those outside torch."""
    retries: tuple[int, int]
    """Range of how often torch released all cached memory and synchronized the device to serve a request."""
    driver_calls: tuple[int, int]
    """Range of the number of segments allocated or mapped."""
    orders: int
    """Number of simulated orders of addresses."""
    failing_orders: int
    """Number of orders in which a request fails that the program needs; all if `began_above_memory`.

    It needs all that were served in the recording, and those whose failure ended the run.
    """
    failure: SimulatedFailure | None
    """Earliest such request; None if there is none."""
    served: tuple[int, ...]
    """Events of failed allocations in the recording that would have been served in every order."""
    failed_again: tuple[int, ...]
    """Events of failed allocations that the program survived, and that would fail again in at least one order."""

    @property
    def fits(self) -> bool:
        """True if every request that the program needs is served in every order, at once or after a retry.

        False if `began_above_memory`. Exempt are failed allocations that the program survived in the recording: it may
        request memory only to find out how much there is.
        """
        return self.failing_orders == 0

    @property
    def began_above_memory(self) -> bool:
        """True if the recording began with more memory in use than the GPU has for torch: no request of it fails."""
        return self.failing_orders > 0 and self.failure is None


@dataclass(frozen=True)
class CostlyChanges:
    """Recorded settings without which the run would reserve less memory."""

    changes: tuple[str, ...]
    """Settings as in PYTORCH_ALLOC_CONF."""
    is_joint: bool
    """True if there are several and they cost memory only together."""
    without: tuple[Outcome, ...]
    """Outcome without each of `changes`, with all other recorded settings."""
    recorded: Outcome
    """Outcome with all recorded settings."""


@dataclass(frozen=True, eq=False)
class WhatIf:
    """Result of `Trace.what_if`. Sizes in bytes."""

    device: str
    """Device whose requests were simulated, in torch's spelling."""
    gpu: Gpu
    """Simulated GPU."""
    check: Check
    """Agreement of the model with the recording."""
    outside_is_known: bool
    """True if the trace or the caller gives the memory used outside torch; False if it is assumed."""
    inherited: bool
    """True if the recording began with memory in use, which keeps its layout in every simulation."""
    outcomes: tuple[Outcome, ...] = field(repr=False)
    """The recorded settings first, then one outcome per setting: as requested or, by default, the best first."""
    ended_out_of_memory: bool = False
    """True if a failed allocation ended the recorded run: what the program requests after it is unknown."""
    has_memory_fraction: bool = False
    """True if the recorded run had a memory fraction: it applies to every setting that has none."""
    costly: CostlyChanges | None = None
    """Recorded settings that cost memory; None if none does, or if the outcomes without them were not predicted."""

    def to_frame(self) -> pd.DataFrame:
        """Return one row per outcome.

        Returns:
            Columns: setting, fits, min_peak_reserved_bytes, max_peak_reserved_bytes, device_used_bytes, retries_low,
            retries_high, driver_calls (the maximum), failures_served, failed_seq and failed_bytes (<NA> if no request
            fails). Sizes in bytes.
        """
        import pandas as pd

        rows = [
            (
                *(
                    outcome.setting.text,
                    outcome.fits,
                    *outcome.peak_reserved_bytes,
                    outcome.device_used_bytes,
                    *outcome.retries,
                ),
                *(outcome.driver_calls[1], len(outcome.served)),
                *((outcome.failure.seq, outcome.failure.requested_bytes) if outcome.failure else (None, None)),
            )
            for outcome in self.outcomes
        ]
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        return table.astype({"failed_seq": "Int64", "failed_bytes": "Int64"})


def predict(
    trace: RecordedTrace,
    settings: Sequence[str] = (),
    *,
    memory: int | str | GpuMemory | None = None,
    outside: int | None = None,
    device: str | None = None,
) -> WhatIf:
    """Implement `Trace.what_if`."""
    requested = [parse_setting(text) for text in settings]
    model = Model(trace, device)
    tried = requested or [parse_setting(text) for text in list_candidates(model.changes)]
    return predict_of(model, tried, memory=memory, outside=outside, is_ranked=not requested)


def predict_of(
    model: Model,
    settings: Sequence[Setting],
    *,
    memory: int | str | GpuMemory | None = None,
    outside: int | None = None,
    is_ranked: bool,
) -> WhatIf:
    """Predict the run under the recorded settings and `settings`, these in order or, if is_ranked, the best first."""
    gpu = gpu_of(model, memory, outside)
    recorded_outcome, *setting_outcomes = outcomes(model, [model.recorded, *settings], gpu)
    if is_ranked:
        setting_outcomes.sort(key=rank)
    return WhatIf(
        model.device,
        gpu,
        model.check,
        outside is not None or model.outside_bytes is not None,
        model.inherited > 0,
        (recorded_outcome, *setting_outcomes),
        len(model.fatal_failures) > 0,
        model.has_memory_fraction,
        find_costly_changes(model.changes, recorded_outcome, setting_outcomes),
    )


def find_costly_changes(changes: Sequence[str], recorded: Outcome, outcomes: Iterable[Outcome]) -> CostlyChanges | None:
    """Return the changes of torch's defaults without which the run would reserve notably less; None if none."""
    by_text = {outcome.setting.text: outcome for outcome in outcomes}
    maximum = (1 - MIN_SAVED_SHARE) * recorded.peak_reserved_bytes[0]
    costly_changes = [
        (change, by_text[text])
        for change, text in zip(changes, list_without_one(changes), strict=True)
        if text in by_text and by_text[text].fits and by_text[text].peak_reserved_bytes[1] <= maximum
    ]
    if not costly_changes:
        return None
    costly, without = zip(*costly_changes, strict=True)
    # Settings that cost memory only together: without any one of them, the run reserves as little as without all.
    maximum = int((1 + MIN_SAVED_SHARE) * by_text[DEFAULTS].peak_reserved_bytes[1]) if DEFAULTS in by_text else 0
    is_joint = len(costly_changes) > 1 and all(outcome.peak_reserved_bytes[1] <= maximum for outcome in without)
    return CostlyChanges(costly, is_joint, without, recorded)


def gpu_of(model: Model, memory: int | str | GpuMemory | None, outside: int | None) -> Gpu:
    """Return a GPU with this memory, of which torch cannot use `outside`; None stands for the recorded value."""
    if outside is None:
        outside = model.outside_bytes
    if outside is None:
        outside = DEFAULT_OUTSIDE_BYTES
    if isinstance(memory, str):
        memory = parse_gpu_memory(memory)
    if isinstance(memory, GpuMemory):
        return Gpu(memory.bytes, outside, memory.names)
    return Gpu(model.device_bytes if memory is None else memory, outside)


def rank(outcome: Outcome) -> tuple[bool, int, int, int, int]:
    """Return the sort key: fitting, fewer failures, then less memory, fewer retries and driver calls."""
    return (
        not outcome.fits,
        len(outcome.failed_again),
        outcome.peak_reserved_bytes[1],
        outcome.retries[1],
        outcome.driver_calls[1],
    )


def outcomes(model: Model, settings: Sequence[Setting], gpu: Gpu) -> list[Outcome]:
    orders = model.orders()
    fatal = model.fatal_failures
    results = model.run(
        [model.simulation(setting, gpu, order, must_serve=fatal) for setting in settings for order in orders]
    )
    return [
        outcome(model, setting, gpu, results[number * len(orders) : (number + 1) * len(orders)])
        for number, setting in enumerate(settings)
    ]


def outcome(model: Model, setting: Setting, gpu: Gpu, simulations: Sequence[SimulationResult]) -> Outcome:
    widening = model.check.deviation
    peaks = [simulation.peak_reserved for simulation in simulations]
    failures = [simulation.failure for simulation in simulations if simulation.failure is not None]
    first_failure = min(failures, key=lambda failure: failure.seq, default=None)
    served = set.intersection(*(set(simulation.served) for simulation in simulations))
    failed_again = {seq for simulation in simulations for seq in simulation.failed_again}
    max_peak = int(max(peaks) * (1 + widening))
    return Outcome(
        setting=setting,
        gpu=gpu,
        peak_reserved_bytes=(int(min(peaks) * (1 - widening)), max_peak),
        device_used_bytes=max(max_peak, *(simulation.peak_used for simulation in simulations)) + gpu.outside_bytes,
        retries=_min_and_max(simulation.retries for simulation in simulations),
        driver_calls=_min_and_max(simulation.segments_allocated for simulation in simulations),
        orders=len(simulations),
        failing_orders=sum(is_failed(simulation, gpu) for simulation in simulations),
        failure=None if first_failure is None else _describe_failure(model.trace, first_failure),
        served=tuple(sorted(served)),
        failed_again=tuple(sorted(failed_again)),
    )


def is_failed(simulation: SimulationResult, gpu: Gpu) -> bool:
    """Return True if a needed request fails, or if the recording began with more memory in use than the GPU has."""
    capacity = gpu.capacity_bytes
    return simulation.failure is not None or (capacity is not None and simulation.peak_active > capacity)


def _min_and_max(numbers: Iterable[int]) -> tuple[int, int]:
    values = list(numbers)
    return min(values), max(values)


def _describe_failure(trace: RecordedTrace, failure: SimulationFailure) -> SimulatedFailure:
    [events] = trace.iter_events(Range(failure.seq, failure.seq + 1))
    stack = int(events["forward_stack_id"][0] or events["stack_id"][0])
    return SimulatedFailure(
        failure.seq,
        failure.requested,
        failure.needed,
        failure.reserved,
        failure.allocated,
        Site.of_stack(trace.stacks, stack),
        stack,
    )
