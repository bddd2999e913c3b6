"""What would have been under other settings and on other GPUs, in words and tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.text import Text

from ..analysis.what_if.fitting import MARGIN, Fit, Fitting, fits_on
from ..analysis.what_if.model import Check, Gpu
from ..analysis.what_if.prediction import Outcome, WhatIf
from ..errors import NotPredictableError
from ..reading.recorded import RecordedTrace
from . import units
from .screen import Screen
from .site_names import SiteNames

UNKNOWN = (
    "Not known before a run: what a program does after a failed allocation, or with what it sees of free memory, and"
    " what libraries such as cuDNN choose there."
)
INHERITED = "The recording began with memory in use, which keeps the layout that it had."
GPU_SIZES_ARE_NOMINAL = (
    "The gigabytes in a GPU's name are nominal. What counts is the memory that CUDA reports of it (where GPUs are"
    " listed together, the least of them, with error correction on), less what lies outside torch."
)


def write_what_if(found: WhatIf, screen: Screen, names: SiteNames) -> None:
    """The outcomes of one device, under its check."""
    _write_head(found.device, found.check, screen)
    screen.text(f"On {describe_gpu(found.gpu, is_known=found.outside_is_known)}.", style="dim")
    if found.inherited:
        screen.text(INHERITED, style="dim")
    screen.blank()
    for one in found.outcomes:
        _write_outcome(one, screen, names)
    screen.blank()
    screen.text(UNKNOWN, style="dim")


def _write_head(device: str, check: Check, screen: Screen) -> None:
    screen.text(Text.assemble((device, "bold"), f": {check.sentence}"))


def describe_gpu(gpu: Gpu, *, is_known: bool) -> str:
    """ "a device of 80.0 GiB, 500 MiB of it outside torch"; is_known: whether what is outside is."""
    outside = f"{units.size(gpu.outside_bytes)} of it outside torch{'' if is_known else ' (assumed)'}"
    return (
        "a device of unlimited memory"
        if gpu.device_bytes is None
        else f"a device of {units.size(gpu.device_bytes)}, {outside}"
    )


def _write_outcome(one: Outcome, screen: Screen, names: SiteNames) -> None:
    style = "bold green" if one.serves_all else "bold red"
    screen.text(Text.assemble(("fits   " if one.fits else "FAILS  ", style), (one.setting.text, "bold")), hanging=9)
    screen.text(f"{figures(one)}.", 7)
    if one.refused is not None:
        where = (
            "" if one.refused_orders == one.orders else f" in {one.refused_orders} of {one.orders} orders of addresses"
        )
        screen.text(
            f"Refused{where}: {units.size(one.refused.requested_bytes)} at {names.site(one.refused.site)}"
            f" (event {one.refused.seq:,}), with {units.size(one.refused.reserved_bytes)} reserved,"
            f" {units.size(one.refused.allocated_bytes)} of it allocated.",
            7,
        )
    if one.served:
        count = units.counted(len(one.served), "request")
        screen.text(f"{count} that the recorded run was refused would have been served.", 7)
    if one.refused_again:
        screen.text(f"{units.counted(len(one.refused_again), 'request')} would have been refused again.", 7)


def figures(one: Outcome) -> str:
    """What a run comes to: "peak reserved 9.88 to 9.92 GiB, 10.6 GiB of the device, no retries"."""
    retries = (
        "no retries" if one.retries[1] == 0 else units.counted(one.retries[1], "retry").replace("retrys", "retries")
    )
    if one.retries[0] != one.retries[1]:
        retries = f"{one.retries[0]:,} to {one.retries[1]:,} retries"
    peak = units.sizes(*one.peak_reserved_bytes)
    return f"peak reserved {peak}, {units.size(one.device_used_bytes)} of the device, {retries}"


def what_if_data(found: WhatIf) -> dict[str, Any]:
    """As plain values; sizes in bytes."""
    return {
        "device": found.device,
        "device_bytes": found.gpu.device_bytes,
        "outside_bytes": found.gpu.outside_bytes,
        "outside_is_known": found.outside_is_known,
        "inherited": found.inherited,
        "check": dataclasses.asdict(found.check),
        "outcomes": [_outcome_data(one) for one in found.outcomes],
    }


def outcome_figures(one: Outcome) -> dict[str, Any]:
    """What the page and the JSON say of an outcome alike."""
    return {
        "setting": one.setting.text,
        "fits": one.fits,
        "serves_all": one.serves_all,
        "peak_reserved_bytes": list(one.peak_reserved_bytes),
        "device_used_bytes": one.device_used_bytes,
        "retries": list(one.retries),
        "orders": one.orders,
        "refused_orders": one.refused_orders,
    }


def _outcome_data(one: Outcome) -> dict[str, Any]:
    return {
        **outcome_figures(one),
        "driver_calls": list(one.driver_calls),
        "refused": None if one.refused is None else dataclasses.asdict(one.refused),
        "served": list(one.served),
        "refused_again": list(one.refused_again),
    }


def write_fit(found: Fit, screen: Screen) -> None:
    """What a run needs, under each setting, and on common GPUs."""
    _write_head(found.device, found.check, screen)
    assumed = "" if found.outside_is_known else " (assumed)"
    recorded = "" if found.device_bytes is None else f" The run had {units.size(found.device_bytes)}."
    screen.text(
        f"Memory of the whole device, with {units.size(found.outside_bytes)} outside torch{assumed}.{recorded}",
        style="dim",
    )
    for one in found.fittings:
        screen.blank()
        _write_fitting(one, screen)
    screen.blank()
    screen.text(f"{GPU_SIZES_ARE_NOMINAL} {UNKNOWN}", style="dim")


def _write_fitting(one: Fitting, screen: Screen) -> None:
    screen.text(one.setting.text, style="bold")
    sizes = (one.smallest_bytes, one.recommended_bytes, one.without_retries_bytes, one.peak_active_bytes)
    smallest, recommended, without_retries, peak_active = map(units.size, sizes)
    screen.text(
        f"Fits on {smallest}; with {MARGIN:.0%} more for the driver's addresses, {recommended}. Without giving anything"
        f" back it takes {without_retries}; {peak_active} is the least that can be enough.",
        2,
    )
    if one.exceptions_bytes:
        listed = ", ".join(units.size(size) for size in one.exceptions_bytes[:4])
        screen.text(f"It also happens to fit on {listed}, but not on all sizes above.", 2)
    for gpu in one.gpus:
        outcome = gpu.outcome
        if outcome.fits:
            words = "fits, " + figures(outcome).rsplit(", ", 1)[1]
        elif outcome.refused_orders < outcome.orders:
            words = "depends on the driver's addresses"
        else:
            words = "does not fit"
        screen.text(f"{gpu.name:<27}{for_torch(outcome.gpu)}: {words}", 2, hanging=29)


def for_torch(gpu: Gpu) -> str:
    """What a GPU has: "21.9 GiB, 21.4 GiB for torch"."""
    return f"{units.size(gpu.device_bytes or 0)}, {units.size(gpu.capacity_bytes or 0)} for torch"


def fit_data(found: Fit) -> dict[str, Any]:
    """As plain values; sizes in bytes."""
    return {
        "device": found.device,
        "outside_bytes": found.outside_bytes,
        "outside_is_known": found.outside_is_known,
        "recorded_device_bytes": found.device_bytes,
        "check": dataclasses.asdict(found.check),
        "settings": [
            {
                "setting": one.setting.text,
                "smallest_bytes": one.smallest_bytes,
                "recommended_bytes": one.recommended_bytes,
                "without_retries_bytes": one.without_retries_bytes,
                "peak_active_bytes": one.peak_active_bytes,
                "resolution_bytes": one.resolution_bytes,
                "exceptions_bytes": list(one.exceptions_bytes),
                "gpus": [
                    {"name": gpu.name, "device_bytes": gpu.outcome.gpu.device_bytes, **_outcome_data(gpu.outcome)}
                    for gpu in one.gpus
                ],
            }
            for one in found.fittings
        ],
    }


def fits_sentence(memory: int, one: Outcome, check: Check) -> str:
    """Whether a run fits on so much memory, in a line."""
    where = f"On {units.size(memory)} ({units.size(one.gpu.outside_bytes)} of it outside torch)"
    exact = "" if check.is_exact else f" {check.sentence}"
    if one.fits:
        return f"{where} the run fits: {figures(one)}.{exact}"
    if one.refused_orders < one.orders:
        return f"{where} it depends on the driver's addresses whether the run fits: {figures(one)}.{exact}"
    return (
        f"{where} the run does not fit: a request is refused at event {one.refused.seq if one.refused else 0:,}.{exact}"
    )


def write_fits(trace: RecordedTrace, memory: int, device: str, screen: Screen) -> None:
    """The same of a trace; where it cannot be told, why."""
    try:
        screen.text(fits_sentence(memory, *fits_on(trace, memory, device=device)))
    except NotPredictableError as error:
        screen.text(f"Whether it fits on {units.size(memory)} cannot be told. {error}")
    screen.blank()
