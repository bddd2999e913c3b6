"""What the sensible settings would have come to on each device, for the page: what `Trace.what_if` says, and the
smallest common GPU. Made when the page is, within a bound of work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...analysis.what_if.choices import MOST_WORK, Choices, choices_for, modelled_devices
from ...analysis.what_if.model import Gpu
from ...analysis.what_if.prediction import Outcome, Refused, WhatIf
from ...errors import NotPredictableError
from ...reading.recorded import RecordedTrace
from ..what_if import GPU_SIZES_ARE_NOMINAL, INHERITED, UNKNOWN, describe_gpu, for_torch, outcome_figures
from .names import PageStacks

_LONG = "The trace is too long to try settings on it each time that a report is made: the command what-if does."


def packed_what_if(trace: RecordedTrace, devices: Sequence[str], stacks: PageStacks) -> dict[str, dict[str, Any]]:
    """By device. Of one where nothing was tried there is a sentence that says why, `refused`."""
    modelled = modelled_devices(trace)
    made: dict[str, dict[str, Any]] = {}
    for device in devices:
        if not device.startswith("cuda"):
            made[device] = {"refused": f"{device} has no such settings: they are those of torch's CUDA allocator."}
            continue
        if device not in modelled and trace.replay.devices[device].is_used:
            made[device] = {"refused": _LONG}
            continue
        try:
            found = choices_for(trace, device, MOST_WORK // max(len(modelled), 1))
        except NotPredictableError as error:
            made[device] = {"refused": str(error)}
            continue
        made[device] = _choices(found, stacks, is_whole=trace.integrity.whole)
    return made


def _choices(choices: Choices, stacks: PageStacks, *, is_whole: bool) -> dict[str, Any]:
    found = choices.found
    if found is None:
        return {"refused": _LONG}
    smallest = choices.smallest or [None] * len(found.outcomes)
    return {
        "refused": "",
        "check": found.check.sentence,
        "is_exact": found.check.is_exact,
        "conditions": _conditions(found, is_whole=is_whole),
        "outcomes": [_outcome(one, gpu, stacks) for one, gpu in zip(found.outcomes, smallest, strict=True)],
        "gpus_tried": bool(choices.smallest),
        "left_out": list(choices.left_out),
        "notes": [GPU_SIZES_ARE_NOMINAL, "The command fit looks for the smallest memory that is enough.", UNKNOWN],
    }


def _conditions(found: WhatIf, *, is_whole: bool) -> list[str]:
    """On what settings are tried, and what is not in the trace."""
    said = [f"Settings are tried on {describe_gpu(found.gpu, is_known=found.outside_is_known)}."]
    if found.inherited:
        said.append(INHERITED)
    if not is_whole:
        said.append("The trace is cut short: what the program requested after the break is not in it.")
    return said


def _outcome(one: Outcome, gpu: tuple[str, Gpu] | None, stacks: PageStacks) -> dict[str, Any]:
    return {
        **outcome_figures(one),
        "refused": None if one.refused is None else _refused(one.refused, stacks),
        "served": len(one.served),
        "refused_again": len(one.refused_again),
        "smallest": None
        if gpu is None
        else {"name": gpu[0], "memory": gpu[1].device_bytes, "about": for_torch(gpu[1])},
    }


def _refused(one: Refused, stacks: PageStacks) -> dict[str, Any]:
    return {
        "seq": one.seq,
        "requested": one.requested_bytes,
        "reserved": one.reserved_bytes,
        "site": stacks.site(one.stack_id),
    }
