"""Comparison of the allocator model's predictions with torch under other settings and on other devices."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from frees import split_frees

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace._replay import SimulationOptions, SimulationResult
from pytorch_alloctrace.analysis.what_if.settings import parse_setting

MIB = 2**20
REQUESTS = ("alloc", "oom", "empty_cache")
SEGMENTS = {4: "segment_alloc", 5: "segment_free", 6: "segment_map", 7: "segment_unmap"}
OUTSIDE = 500 * MIB
"""Bytes that the simulated device reserves for itself."""

SegmentEvent = tuple[int, str, int]
"""Number of the request that caused a segment event, from 0, and the event's kind and size."""


@dataclass
class Comparison:
    """Differences as texts, number of compared events, and whether an allocation failed."""

    differences: list[str]
    events: int = 0
    failed: bool = False


def torch_segment_events(trace: alloctrace.Trace) -> tuple[list[SegmentEvent], int | None]:
    """Return the segment events of a recording, and the number of the first failed request or None."""
    segment_events: list[SegmentEvent] = []
    pending: list[tuple[str, int]] = []
    number, is_emptying, failed_request = -1, False, None
    emptied_pool = (0, 0)
    kinds = (*REQUESTS, "free_requested", "free_completed", *SEGMENTS.values(), "state_block")
    events = split_frees(
        trace.events(kinds=kinds, columns=("seq", "kind", "device", "address", "requested_bytes", "pool", "node_seq"))
    )
    for kind, size, pool in zip(events["kind"], events["requested_bytes"], events["pool"], strict=True):
        if kind == "free_requested":
            is_emptying = False
        elif kind in ("free_completed", "state_block"):
            continue
        elif kind in REQUESTS:
            number += 1
            is_emptying, emptied_pool = kind == "empty_cache", pool
            if not is_emptying:
                segment_events += [(number, *event) for event in pending]
                pending = []
            if kind == "oom" and failed_request is None:
                failed_request = number
        elif is_emptying and kind in ("segment_free", "segment_unmap") and emptied_pool in ((0, 0), pool):
            segment_events.append((number, kind, int(size)))
        else:
            is_emptying = False
            pending.append((kind, int(size)))
    return segment_events, failed_request


def model_segment_events(trace: alloctrace.Trace, result: SimulationResult) -> tuple[list[SegmentEvent], int | None]:
    """Return segment events and first failed request of a simulation of a trace's requests."""
    requests = trace.events(kinds=REQUESTS, columns=("seq",))["seq"]
    number = {int(seq): at for at, seq in enumerate(requests)}
    events = result.events()
    rows = zip(events["seq"], events["kind"], events["size"], strict=True)
    segment_events = [(number[int(seq)], SEGMENTS[int(kind)], int(size)) for seq, kind, size in rows]
    return segment_events, None if result.failure is None else number[result.failure.seq]


def settings_of(trace: alloctrace.Trace, setting: str) -> str:
    """Return all settings of a run, as parsed by torch; assert that parse_setting() agrees on `setting`."""
    text = trace._recorded.text(int(trace.events(kinds=("config",))["requested_bytes"].iloc[0]))
    parsed = json.loads(text)
    for name, value in parse_setting(setting).for_release(trace._recorded.torch_release).values.items():
        assert parsed[name] == value, (setting, name, parsed[name], value)
    return text


def as_recorded(trace: alloctrace.Trace) -> SimulationOptions:
    return SimulationOptions(order="recorded", total=int(trace.hardware()["total_bytes"].iloc[0]))


def compare(recorded: Path, again: Path, setting: str) -> Comparison:
    """Compare the prediction from a trace with the run `again` under `setting`; the model must reproduce both runs."""
    before, after = alloctrace.load(recorded), alloctrace.load(again)
    total = int(after.hardware()["total_bytes"].iloc[0])
    options = SimulationOptions(settings_of(after, setting), capacity=total - OUTSIDE, total=total, records_events=True)
    [itself, predicted] = before._recorded.predicted([as_recorded(before), options], device="cuda:0").simulations
    [also_itself] = after._recorded.predicted([as_recorded(after)], device="cuda:0").simulations
    comparison = Comparison([])
    for name, simulation, trace in (("recorded", itself, before), ("again", also_itself, after)):
        if simulation.first_difference is not None or simulation.failure is not None:
            events = f"{simulation.reproduced} of {simulation.recorded_events} events"
            blocks = f"{simulation.same_blocks} of {simulation.blocks} blocks"
            reproduced = f"{events} and {blocks}, first difference at {simulation.first_difference}"
            comparison.differences.append(f"{name}: the model reproduces {reproduced}")
        elif simulation.peak_allocated != (peak := trace.peak("allocated", device="cuda:0").bytes):
            comparison.differences.append(
                f"{name}: peak {simulation.peak_allocated} allocated bytes in the model, {peak} recorded"
            )
    expected, failed_request = torch_segment_events(after)
    predicted_events, predicted_failure = model_segment_events(before, predicted)
    if failed_request != predicted_failure:
        comparison.differences.append(f"torch failed allocation {failed_request}, the model {predicted_failure}")
    if failed_request is not None:
        expected, comparison.failed = [event for event in expected if event[0] <= failed_request], True
    # torch orders streams by handle, and handles differ between runs, so the segments that one request releases are in
    # no fixed order.
    pairs = itertools.zip_longest(sorted(predicted_events), sorted(expected))
    if first := next((pair for pair in pairs if pair[0] != pair[1]), None):
        comparison.differences.append(f"torch: {first[1]}, the model: {first[0]}")
    comparison.events = len(expected) + itself.recorded_events + also_itself.recorded_events
    return comparison
