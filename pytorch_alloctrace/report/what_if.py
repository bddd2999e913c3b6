"""Simulations under other settings and on other GPUs, as text and as JSON (fields: docs/json.md)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from ..analysis.free_memory.allocator import MIB
from ..analysis.what_if.fitting import MARGIN, Fit, Fitting, OnGpu, fits_on, is_too_long_for_batch, judge_fit
from ..analysis.what_if.model import Check, Gpu, Model
from ..analysis.what_if.prediction import CostlyChanges, Outcome, WhatIf
from ..errors import NotPredictableError
from ..gpus import GpuMemory
from ..reading.recorded import RecordedTrace
from . import units
from .screen import Screen
from .site_names import SiteNames

UNKNOWN = (
    "Not predictable: how a program reacts to a failed allocation or to the free memory, and what libraries such as"
    " cuDNN choose there."
)
INHERITED = "The recording began with memory in use; its layout is kept."
ENDED_OUT_OF_MEMORY = (
    "The recorded run ended out of memory: what it would request after that is unknown, and may not fit."
)
NO_BEGINNING = "The history of the converted snapshot begins after the run did, which may have needed more before."
RETRY = (
    "Retry: no memory was left for a request, so torch emptied its cache, waited for the device and tried again. A run"
    " that fits with retries serves every request, but is slower."
)
BEGAN_ABOVE_MEMORY = "the recording began with more memory in use than this GPU has for torch"
MEMORY_FRACTION = "The recorded memory fraction applies to every setting that has none."
BATCH_ESTIMATE = "If activations, inputs and temporaries grow with the batch (estimate)"
LARGEST_BATCH = (
    f"{BATCH_ESTIMATE}, the largest batch is about this one times the factor in the table. Up to the first number, no"
    " simulated batch needs a retry; from there to the second, some may fit by retries, others not. The range widens"
    " with the distance from the recorded batch: for a closer estimate, record a batch near the one that you plan."
)
RECORDED_GPU = "recorded GPU"
_BATCH_WIDTH = 16
_MAX_EXCEPTIONS = 4
GPU_SIZES_ARE_NOMINAL = (
    "The gigabytes in a GPU's name are nominal. What counts is the memory that CUDA reports (of GPUs listed together,"
    " the smallest) minus the memory outside torch."
)


def write_what_if(what_if: WhatIf, screen: Screen, names: SiteNames) -> None:
    _write_head(what_if.device, what_if.check, screen)
    screen.text(f"On {describe_gpu(what_if.gpu, is_known=what_if.outside_is_known)}.", style="dim")
    if what_if.inherited:
        screen.text(INHERITED, style="dim")
    if what_if.has_memory_fraction:
        screen.text(MEMORY_FRACTION, style="dim")
    if what_if.ended_out_of_memory:
        screen.text(ENDED_OUT_OF_MEMORY, style="bold")
    if what_if.costly is not None:
        screen.text(describe_costly_changes(what_if.costly), style="bold")
    screen.blank()
    for outcome in what_if.outcomes:
        _write_outcome(outcome, screen, names)
    screen.blank()
    has_retries = any(outcome.fits and outcome.retries[1] for outcome in what_if.outcomes)
    screen.text(f"{RETRY} {UNKNOWN}" if has_retries else UNKNOWN, style="dim")


def _write_head(device: str, check: Check, screen: Screen) -> None:
    screen.text(Text.assemble((device, "bold"), f": {check.sentence}"))


def describe_gpu(gpu: Gpu, *, is_known: bool) -> str:
    """Return "a device of 22.0 GiB (L4 or A10G), 500 MiB of it outside torch", or "(assumed)" unless `is_known`."""
    outside = f"{units.size(gpu.outside_bytes)} of it outside torch{'' if is_known else ' (assumed)'}"
    return (
        "a device of unlimited memory"
        if gpu.device_bytes is None
        else f"a device of {units.size(gpu.device_bytes)}{_name_gpus(gpu.names)}, {outside}"
    )


def _name_gpus(names: Sequence[str]) -> str:
    """Return " (L4 or A10G)"; empty without names."""
    return f" ({' or '.join(names)})" if names else ""


def _write_outcome(outcome: Outcome, screen: Screen, names: SiteNames) -> None:
    style = "bold green" if outcome.fits else "bold red"
    screen.text(
        Text.assemble(("fits   " if outcome.fits else "FAILS  ", style), (outcome.setting.text, "bold")), hanging=9
    )
    screen.text(f"{figures(outcome)}.", 7)
    if outcome.failure is not None:
        orders_note = (
            ""
            if outcome.failing_orders == outcome.orders
            else f" in {outcome.failing_orders} of {outcome.orders} orders of addresses"
        )
        screen.text(
            f"Failed{orders_note}: {units.size(outcome.failure.requested_bytes)} at {names.site(outcome.failure.site)}"
            f" (event {outcome.failure.seq:,}), with {units.size(outcome.failure.reserved_bytes)} reserved,"
            f" {units.size(outcome.failure.allocated_bytes)} of it allocated.",
            7,
        )
    if outcome.began_above_memory:
        screen.text(f"Failed: {BEGAN_ABOVE_MEMORY}.", 7)
    if outcome.served:
        count = units.counted(len(outcome.served), "request")
        screen.text(f"{count} that failed in the recording would have succeeded.", 7)
    if outcome.failed_again:
        count = units.counted(len(outcome.failed_again), "request")
        screen.text(f"{count} would have failed again. The recorded program went on after each.", 7)


def figures(outcome: Outcome) -> str:
    """Return figures such as "peak reserved 9.88 to 9.92 GiB, 10.6 GiB of the device, no retries"."""
    retries = (
        "no retries"
        if outcome.retries[1] == 0
        else units.counted(outcome.retries[1], "retry").replace("retrys", "retries")
    )
    if outcome.retries[0] != outcome.retries[1]:
        retries = f"{outcome.retries[0]:,} to {outcome.retries[1]:,} retries"
    peak = units.sizes(*outcome.peak_reserved_bytes)
    return f"peak reserved {peak}, {units.size(outcome.device_used_bytes)} of the device, {retries}"


def describe_costly_changes(costly: CostlyChanges) -> str:
    """Describe the recorded settings that cost memory, and what the run would reserve without each."""
    recorded = units.sizes(*costly.recorded.peak_reserved_bytes)
    needed = [units.sizes(*outcome.peak_reserved_bytes) for outcome in costly.without]
    if costly.is_joint:
        subject, verb = " together with ".join(costly.changes), "reserves"
        largest = max(costly.without, key=lambda outcome: outcome.peak_reserved_bytes[1])
        need = units.sizes(*largest.peak_reserved_bytes)
        without = f"either alone needs {need}" if len(costly.changes) == 2 else f"without any one of them it is {need}"
        return f"{subject} {verb} {recorded}; {without}."
    parts = [f"{need} without {change}" for change, need in zip(costly.changes, needed, strict=True)]
    return f"The recorded settings reserve {recorded}: it would be {' or '.join(parts)}."


def what_if_data(what_if: WhatIf) -> dict[str, Any]:
    return {
        "device": what_if.device,
        "device_bytes": what_if.gpu.device_bytes,
        "gpus": list(what_if.gpu.names),
        "outside_bytes": what_if.gpu.outside_bytes,
        "outside_is_known": what_if.outside_is_known,
        "inherited": what_if.inherited,
        "ended_out_of_memory": what_if.ended_out_of_memory,
        "has_memory_fraction": what_if.has_memory_fraction,
        "costly_settings": None if what_if.costly is None else _costly_data(what_if.costly),
        "check": dataclasses.asdict(what_if.check),
        "outcomes": [_outcome_data(outcome) for outcome in what_if.outcomes],
    }


def _costly_data(costly: CostlyChanges) -> dict[str, Any]:
    return {
        "settings": list(costly.changes),
        "is_joint": costly.is_joint,
        "peak_reserved_bytes": list(costly.recorded.peak_reserved_bytes),
        "without": [
            {"setting": outcome.setting.text, "peak_reserved_bytes": list(outcome.peak_reserved_bytes)}
            for outcome in costly.without
        ],
    }


def outcome_figures(outcome: Outcome) -> dict[str, Any]:
    """Return the figures that the page and the JSON share."""
    return {
        "setting": outcome.setting.text,
        "fits": outcome.fits,
        "peak_reserved_bytes": list(outcome.peak_reserved_bytes),
        "device_used_bytes": outcome.device_used_bytes,
        "retries": list(outcome.retries),
        "orders": outcome.orders,
        "failing_orders": outcome.failing_orders,
    }


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome_figures(outcome),
        "driver_calls": list(outcome.driver_calls),
        "failure": None if outcome.failure is None else dataclasses.asdict(outcome.failure),
        "served": list(outcome.served),
        "failed_again": list(outcome.failed_again),
    }


def write_fit(fit: Fit, screen: Screen) -> None:
    _write_head(fit.device, fit.check, screen)
    assumed = "" if fit.outside_is_known else " (assumed)"
    recorded = "" if fit.device_bytes is None else f" The run had {units.size(fit.device_bytes)}."
    screen.text(
        f"Memory of the whole device, with {units.size(fit.outside_bytes)} outside torch{assumed}.{recorded}",
        style="dim",
    )
    if fit.has_memory_fraction:
        screen.text(MEMORY_FRACTION, style="dim")
    if fit.ended_out_of_memory:
        screen.text(ENDED_OUT_OF_MEMORY, style="bold")
    for fitting in fit.fittings:
        screen.blank()
        _write_fitting(fitting, screen)
    screen.blank()
    has_factors = any(gpu.batch_factors for fitting in fit.fittings for gpu in fitting.gpus)
    has_retries = has_factors or any(
        fitting.smallest_bytes != fitting.without_retries_bytes for fitting in fit.fittings
    )
    batch_note = [LARGEST_BATCH] if has_factors else []
    notes = [*batch_note, GPU_SIZES_ARE_NOMINAL, *([RETRY] if has_retries else []), UNKNOWN]
    screen.text(" ".join(notes), style="dim")


def _write_fitting(fitting: Fitting, screen: Screen) -> None:
    screen.text(fitting.setting.text, style="bold")
    screen.text(_describe_sizes(fitting), 2)
    if fitting.exceptions_bytes:
        screen.text(_describe_exceptions(fitting), 2)
    _write_gpus(fitting.gpus, screen)


def _write_gpus(gpus: Sequence[OnGpu], screen: Screen) -> None:
    """Write a table; without estimates of the batch, the larger GPUs with one verdict share a row.

    The recorded GPU has a row of its own.
    """
    has_factors = any(gpu.batch_factors for gpu in gpus)
    verdicts = [_describe_verdict(gpu.outcome) for gpu in gpus]
    last_change = max((row for row in range(1, len(verdicts)) if verdicts[row] != verdicts[row - 1]), default=0)
    recorded = max((row for row, gpu in enumerate(gpus) if not gpu.names), default=0)
    separate_rows = len(gpus) if has_factors else max(last_change, recorded) + 1
    names_of_rows = [", ".join(gpu.names) or RECORDED_GPU for gpu in gpus[:separate_rows]]
    table = [*zip(names_of_rows, gpus, verdicts, strict=False)]
    if separate_rows < len(gpus):
        table.append((f"larger, up to {gpus[-1].names[-1]}", gpus[-1], verdicts[-1]))
    batch_width = _BATCH_WIDTH if has_factors else 0
    batch_title = "largest batch" if has_factors else ""
    screen.text(f"{'GPU':<20}{'memory':<10}{'for torch':<11}{batch_title:<{batch_width}}this run", 2, style="dim")
    for names, gpu, verdict in table:
        factors = "" if gpu.batch_factors is None else _describe_batch(gpu)
        sizes = gpu.outcome.gpu.device_bytes or 0, gpu.outcome.gpu.capacity_bytes or 0
        figures = f"{units.size(sizes[0]):<10}{units.size(sizes[1]):<11}{factors:<{batch_width}}"
        screen.text(f"{names:<20}{figures}{verdict}", 2, hanging=22)


def _describe_batch(gpu: OnGpu) -> str:
    """Return "x 1.38 to 1.53"; "up to x 1.53" if every batch needs retries; "none" if none fits."""
    if not gpu.batch_factors or not gpu.max_batch_factor:
        return "none"
    if not gpu.min_batch_factor:
        return f"up to x {_format_factor(gpu.max_batch_factor)}"
    return f"x {_format_factors(gpu.batch_factors)}"


def _describe_sizes(fitting: Fitting) -> str:
    lower_bound = f"{units.size(fitting.peak_active_bytes)} is the lower bound."
    if fitting.smallest_bytes is None or fitting.recommended_bytes is None:
        return f"Does not fit on {units.size(fitting.largest_bytes)}, the largest size that was tried; {lower_bound}"
    smallest, recommended = map(units.minimum, (fitting.smallest_bytes, fitting.recommended_bytes))
    text = f"Fits on {smallest}; with {MARGIN:.0%} more for the driver's addresses, {recommended}."
    if fitting.without_retries_bytes is None:
        return f"{text} At every size it needs retries; {lower_bound}"
    return f"{text} Without retries it needs {units.minimum(fitting.without_retries_bytes)}; {lower_bound}"


def _describe_exceptions(fitting: Fitting) -> str:
    sizes = [f"{-(-size // MIB):,} MiB" for size in fitting.exceptions_bytes]
    more = f" and {len(sizes) - _MAX_EXCEPTIONS:,} more" if len(sizes) > _MAX_EXCEPTIONS else ""
    text = f"Sizes that fit only by a lucky layout: {', '.join(sizes[:_MAX_EXCEPTIONS])}{more}."
    if fitting.smallest_bytes is None:
        return f"{text} Larger ones that were tried do not fit."
    return f"{text} Some between do not fit, so choose {units.minimum(fitting.smallest_bytes)} or more."


def _format_factors(factors: tuple[float, float]) -> str:
    """Return "1.38 to 1.53", or one number if both ends have the same text."""
    return " to ".join(dict.fromkeys(map(_format_factor, factors)))


def _format_factor(factor: float) -> str:
    """Format a factor with two or three digits, rounded down: "0.0012", "0.85", "1.07", "12.3"."""
    digits = (0 if factor == 0 else 4) if factor < 0.1 else 2 if factor < 10 else 1 if factor < 100 else 0
    return f"{math.floor(factor * 10**digits) / 10**digits:,.{digits}f}"


def _describe_verdict(outcome: Outcome) -> str:
    if outcome.fits:
        return "fits, " + figures(outcome).rsplit(", ", 1)[1]
    return "depends on the driver's addresses" if outcome.failing_orders < outcome.orders else "does not fit"


def for_torch(gpu: Gpu) -> str:
    """Return "21.9 GiB, 21.4 GiB for torch"."""
    return f"{units.size(gpu.device_bytes or 0)}, {units.size(gpu.capacity_bytes or 0)} for torch"


def fit_data(fit: Fit) -> dict[str, Any]:
    return {
        "device": fit.device,
        "outside_bytes": fit.outside_bytes,
        "outside_is_known": fit.outside_is_known,
        "recorded_device_bytes": fit.device_bytes,
        "ended_out_of_memory": fit.ended_out_of_memory,
        "has_memory_fraction": fit.has_memory_fraction,
        "check": dataclasses.asdict(fit.check),
        "settings": [
            {
                "setting": fitting.setting.text,
                "smallest_bytes": fitting.smallest_bytes,
                "recommended_bytes": fitting.recommended_bytes,
                "without_retries_bytes": fitting.without_retries_bytes,
                "peak_active_bytes": fitting.peak_active_bytes,
                "resolution_bytes": fitting.resolution_bytes,
                "exceptions_bytes": list(fitting.exceptions_bytes),
                "largest_bytes": fitting.largest_bytes,
                "gpus": [
                    {
                        "names": list(gpu.names),
                        "device_bytes": gpu.outcome.gpu.device_bytes,
                        "min_batch_factor": gpu.min_batch_factor,
                        "max_batch_factor": gpu.max_batch_factor,
                        **_outcome_data(gpu.outcome),
                    }
                    for gpu in fitting.gpus
                ],
            }
            for fitting in fit.fittings
        ],
    }


def fits_sentence(on_gpu: OnGpu, model: Model) -> str:
    outcome, check = on_gpu.outcome, model.check
    gpu = outcome.gpu
    outside = f"{units.size(gpu.outside_bytes)} of it outside torch"
    subject = f"On {units.size(gpu.device_bytes or 0)}{_name_gpus(gpu.names)}, {outside},"
    check_note = f"{_batch_sentence(on_gpu, model)}{'' if check.is_exact else f' {check.sentence}'}"
    if outcome.began_above_memory:
        return f"{subject} the run does not fit: {BEGAN_ABOVE_MEMORY}, {figures(outcome)}."
    if outcome.fits:
        end_note = f" {ENDED_OUT_OF_MEMORY}" if model.fatal_failures else ""
        end_note += f" {NO_BEGINNING}" if model.trace.lacks_beginning else ""
        return f"{subject} the run fits: {figures(outcome)}.{end_note}{check_note}"
    if outcome.failing_orders < outcome.orders:
        return f"{subject} the run may fit, depending on the driver's addresses: {figures(outcome)}.{check_note}"
    event = outcome.failure.seq if outcome.failure else 0
    return f"{subject} the run does not fit: a request fails at event {event:,}.{check_note}"


def _batch_sentence(on_gpu: OnGpu, model: Model) -> str:
    if is_too_long_for_batch(model):
        return " The trace is too long to estimate the largest batch here: run the command fit."
    if on_gpu.batch_factors is None:
        return ""
    if on_gpu.max_batch_factor == 0:
        return f" {BATCH_ESTIMATE}, no batch fits: the rest of the run needs more memory than that."
    low, high = map(_format_factor, on_gpu.batch_factors)
    if on_gpu.min_batch_factor == 0:
        return f" {BATCH_ESTIMATE}, every batch needs retries; up to about {high} times this one, some may fit by them."
    more = "" if low == high else f"; up to {high} times, some may fit by retries"
    return f" {BATCH_ESTIMATE}, up to about {low} times this batch fits without retries{more}."


def write_fits(trace: RecordedTrace, memory: GpuMemory, device: str, screen: Screen) -> bool | None:
    """Write whether the run fits on a GPU with this memory, and return the answer; None if it cannot be predicted."""
    fits = None
    try:
        on_gpu, model = fits_on(trace, memory, device=device)
        screen.text(fits_sentence(on_gpu, model))
        fits = judge_fit(on_gpu.outcome, model)
    except NotPredictableError as error:
        screen.text(f"Cannot predict whether the run fits on {units.size(memory.bytes)}: {error}")
    screen.blank()
    return fits
