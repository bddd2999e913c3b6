"""Simulations of allocator settings for the page, and the smallest common GPU that is enough, within a work limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...analysis.what_if.choices import MOST_WORK, Choices, choices_for, modelled_devices
from ...analysis.what_if.model import Gpu
from ...analysis.what_if.prediction import Outcome, SimulatedFailure, WhatIf
from ...errors import NotPredictableError
from ...reading.recorded import RecordedTrace
from ..what_if import (
    ENDED_OUT_OF_MEMORY,
    GPU_SIZES_ARE_NOMINAL,
    INHERITED,
    MEMORY_FRACTION,
    UNKNOWN,
    describe_gpu,
    for_torch,
    outcome_figures,
)
from .names import PageStacks

_TOO_LONG = "The trace is too long to try settings for every report: run the command what-if."


def pack_what_if(trace: RecordedTrace, devices: Sequence[str], stacks: PageStacks) -> dict[str, dict[str, Any]]:
    """Return the simulations by device, or the reason in a sentence if none ran."""
    modelled = modelled_devices(trace)
    packed: dict[str, dict[str, Any]] = {}
    for device in devices:
        if not device.startswith("cuda"):
            packed[device] = {"reason": f"{device} has no allocator settings: only torch's CUDA allocator has them."}
            continue
        if device not in modelled and trace.replay.devices[device].is_used:
            packed[device] = {"reason": _TOO_LONG}
            continue
        try:
            choices = choices_for(trace, device, MOST_WORK // max(len(modelled), 1))
        except NotPredictableError as error:
            packed[device] = {"reason": str(error)}
            continue
        packed[device] = _pack_choices(choices, stacks, is_complete=trace.integrity.is_complete)
    return packed


def _pack_choices(choices: Choices, stacks: PageStacks, *, is_complete: bool) -> dict[str, Any]:
    prediction = choices.prediction
    if prediction is None:
        return {"reason": _TOO_LONG}
    smallest = choices.smallest or [None] * len(prediction.outcomes)
    return {
        "reason": "",
        "check": prediction.check.sentence,
        "is_exact": prediction.check.is_exact,
        "conditions": _describe_conditions(prediction, is_complete=is_complete),
        "outcomes": [
            _pack_outcome(outcome, gpu, stacks) for outcome, gpu in zip(prediction.outcomes, smallest, strict=True)
        ],
        "gpus_tried": bool(choices.smallest),
        "left_out": list(choices.left_out),
        "notes": [GPU_SIZES_ARE_NOMINAL, "The command fit looks for the smallest memory that is enough.", UNKNOWN],
    }


def _describe_conditions(prediction: WhatIf, *, is_complete: bool) -> list[str]:
    """Return sentences on the GPU of the simulations, and on what the trace lacks."""
    sentences = [f"Settings are tried on {describe_gpu(prediction.gpu, is_known=prediction.outside_is_known)}."]
    if prediction.has_memory_fraction:
        sentences.append(MEMORY_FRACTION)
    if prediction.ended_out_of_memory:
        sentences.append(ENDED_OUT_OF_MEMORY)
    if prediction.inherited:
        sentences.append(INHERITED)
    if not is_complete:
        sentences.append("The trace is cut short: what the program requested after the break is not in it.")
    return sentences


def _pack_outcome(outcome: Outcome, gpu: Gpu | None, stacks: PageStacks) -> dict[str, Any]:
    return {
        **outcome_figures(outcome),
        "failure": None if outcome.failure is None else _pack_failure(outcome.failure, stacks),
        "served": len(outcome.served),
        "failed_again": len(outcome.failed_again),
        "smallest": None
        if gpu is None
        else {"name": ", ".join(gpu.names), "memory": gpu.device_bytes, "about": for_torch(gpu)},
    }


def _pack_failure(failure: SimulatedFailure, stacks: PageStacks) -> dict[str, Any]:
    return {
        "seq": failure.seq,
        "requested": failure.requested_bytes,
        "reserved": failure.reserved_bytes,
        "site": stacks.site(failure.stack_id),
    }
