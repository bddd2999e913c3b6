"""Predictions of the allocator model, compared with torch under other settings and on other devices."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from frees import in_two

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace._replay import SimulationOptions, SimulationResult
from pytorch_alloctrace.analysis.what_if.settings import parse_setting

MIB = 2**20
REQUESTS = ("alloc", "oom", "empty_cache")
SEGMENTS = {4: "segment_alloc", 5: "segment_free", 6: "segment_map", 7: "segment_unmap"}
OUTSIDE = 500 * MIB
"""What the simulated device uses for itself."""

Made = tuple[int, str, int]
"""The number of the request, counted from 0, and kind and size of a segment event that it caused."""


@dataclass
class Compared:
    """Differences, in words, and how much was compared."""

    differences: list[str]
    events: int = 0
    refused: bool = False


def made_by_torch(trace: alloctrace.Trace) -> tuple[list[Made], int | None]:
    """Return the segment events of a recording, and the number of the first request that failed."""
    made: list[Made] = []
    waiting: list[tuple[str, int]] = []
    number, is_emptying, refused = -1, False, None
    of_pool = (0, 0)
    kinds = (*REQUESTS, "free_requested", "free_completed", *SEGMENTS.values(), "state_block")
    events = in_two(
        trace.events(kinds=kinds, columns=("seq", "kind", "device", "address", "requested_bytes", "pool", "node_seq"))
    )
    for kind, size, pool in zip(events["kind"], events["requested_bytes"], events["pool"], strict=True):
        if kind == "free_requested":
            is_emptying = False
        elif kind in ("free_completed", "state_block"):
            continue
        elif kind in REQUESTS:
            number += 1
            is_emptying, of_pool = kind == "empty_cache", pool
            if not is_emptying:
                made += [(number, *one) for one in waiting]
                waiting = []
            if kind == "oom" and refused is None:
                refused = number
        elif is_emptying and kind in ("segment_free", "segment_unmap") and of_pool in ((0, 0), pool):
            made.append((number, kind, int(size)))
        else:
            is_emptying = False
            waiting.append((kind, int(size)))
    return made, refused


def made_by_model(trace: alloctrace.Trace, simulation: SimulationResult) -> tuple[list[Made], int | None]:
    """Return the same of a simulation of a trace's requests."""
    requests = trace.events(kinds=REQUESTS, columns=("seq",))["seq"]
    number = {int(seq): at for at, seq in enumerate(requests)}
    events = simulation.events()
    rows = zip(events["seq"], events["kind"], events["size"], strict=True)
    made = [(number[int(seq)], SEGMENTS[int(kind)], int(size)) for seq, kind, size in rows]
    return made, None if simulation.refusal is None else number[simulation.refusal.seq]


def settings_of(trace: alloctrace.Trace, setting: str) -> str:
    """Return all settings of a run, as torch parsed them; assert that we parse `setting` equally."""
    text = trace._recorded.text(int(trace.events(kinds=("config",))["requested_bytes"].iloc[0]))
    had = json.loads(text)
    for name, value in parse_setting(setting).for_release(trace._recorded.torch_release).values.items():
        assert had[name] == value, (setting, name, had[name], value)
    return text


def as_recorded(trace: alloctrace.Trace) -> SimulationOptions:
    return SimulationOptions(order="recorded", total=int(trace.hardware()["total_bytes"].iloc[0]))


def compare(recorded: Path, again: Path, setting: str) -> Compared:
    """Compare the prediction from one trace with the run `again` under `setting`; both must reproduce themselves."""
    before, after = alloctrace.load(recorded), alloctrace.load(again)
    total = int(after.hardware()["total_bytes"].iloc[0])
    options = SimulationOptions(settings_of(after, setting), capacity=total - OUTSIDE, total=total, keeps_events=True)
    [itself, predicted] = before._recorded.predicted([as_recorded(before), options], device="cuda:0").simulations
    [also_itself] = after._recorded.predicted([as_recorded(after)], device="cuda:0").simulations
    found = Compared([])
    for name, simulation, trace in (("recorded", itself, before), ("again", also_itself, after)):
        if simulation.first_difference is not None or simulation.refusal is not None:
            events = f"{simulation.reproduced} of {simulation.recorded_events} events"
            blocks = f"{simulation.same_blocks} of {simulation.blocks} blocks"
            reproduced = f"{events} and {blocks}, the first other at {simulation.first_difference}"
            found.differences.append(f"{name}: the model reproduces {reproduced}")
        elif simulation.peak_allocated != (peak := trace.peak("allocated", device="cuda:0").bytes):
            found.differences.append(
                f"{name}: at most {simulation.peak_allocated} bytes are allocated, recorded are {peak}"
            )
    wanted, refused = made_by_torch(after)
    got, predicted_refused = made_by_model(before, predicted)
    if refused != predicted_refused:
        found.differences.append(f"torch failed allocation {refused}, the model {predicted_refused}")
    if refused is not None:
        wanted, found.refused = [one for one in wanted if one[0] <= refused], True
    # The order of streams is that of their handles, which differ between two runs: so does the order in which one
    # request gives back segments.
    pairs = itertools.zip_longest(sorted(got), sorted(wanted))
    if first := next((pair for pair in pairs if pair[0] != pair[1]), None):
        found.differences.append(f"torch: {first[1]}, the model: {first[0]}")
    found.events = len(wanted) + itself.recorded_events + also_itself.recorded_events
    return found
