"""Clocks that step, stand still or run at another rate while a trace is written."""

from __future__ import annotations

import json
from pathlib import Path

import every_output
import hostile_traces
import numpy as np
import pytest
from extreme_traces import location
from hostile_traces import DEFINITIONS, END, EVENTS, HEADER
from test_hostile_traces import show_to_faces

import pytorch_alloctrace as alloctrace

SECOND = 10**9


def trace_with(tmp_path: Path, anchors: list[tuple[int, int, int]], counters: list[list[int]]) -> Path:
    """A trace in which the events of each block have these counters; anchors: at the beginning and after each block."""
    path, first = tmp_path / "t.alloctrace", 0
    made = [
        hostile_traces.file_header(),
        hostile_traces.block(HEADER, b"{}", 0, 0, anchors[0], anchors[0]),
        hostile_traces.block(DEFINITIONS, location(1, 1, 0), 0, 0, anchors[0], anchors[0]),
    ]
    for begin, end, times in zip(anchors[:-1], anchors[1:], counters, strict=True):
        rows = [
            {"kind": 1, "time": time, "address": 4096 * (first + at + 1), "size": 512, "location": 1}
            for at, time in enumerate(times)
        ]
        payload = hostile_traces.event_payload(rows, begin[0])
        made.append(hostile_traces.block(EVENTS, payload, first, len(rows), begin, end))
        first += len(rows)
    made.append(hostile_traces.block(END, json.dumps({}).encode(), first, 0, anchors[-1], anchors[-1]))
    path.write_bytes(b"".join(made))
    return path


def times_of(path: Path) -> list[float]:
    """In seconds since the first event."""
    times = alloctrace.load(path).events()["time_ns"].to_numpy()
    return [float(time) for time in (times - times[0]) / SECOND]


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_wall_clock_that_is_set_while_the_program_runs(tmp_path: Path, step: int) -> None:
    """Times go on as the monotonic clock does; the trace begins when the wall clock said so."""
    wall = 1_700_000_000
    anchors = [(at * SECOND, at * SECOND, (wall + at + (step if at > 1 else 0)) * SECOND) for at in (1, 2, 3, 4)]
    path = trace_with(tmp_path, anchors, [[int((at + part) * SECOND) for part in (0.25, 0.5)] for at in (1, 2, 3)])
    assert times_of(path) == pytest.approx([0, 0.25, 1, 1.25, 2, 2.25], abs=1e-6)
    trace = alloctrace.load(path)
    assert trace.events()["time_ns"].iloc[0] == pytest.approx((wall + 1.25) * SECOND, abs=1000)
    assert trace.integrity.state == "complete" and trace.verify().ok


def test_a_counter_that_changes_its_rate(tmp_path: Path) -> None:
    """As that of a processor that saves power: each block knows how fast it was."""
    anchors = [(0, SECOND, 9 * SECOND), (1000, 2 * SECOND, 10 * SECOND), (1010, 3 * SECOND, 11 * SECOND)]
    path = trace_with(tmp_path, anchors, [[100, 600], [1005, 1009]])
    assert times_of(path) == pytest.approx([0, 0.5, 1.4, 1.8], abs=1e-6)


def test_a_counter_that_jumps_back(tmp_path: Path) -> None:
    """As that of a program which moved to another machine, or a core that is not in step."""
    anchors = [(10**12, SECOND, 9 * SECOND), (10**12 + 1000, 2 * SECOND, 10 * SECOND), (5000, 3 * SECOND, 11 * SECOND)]
    path = trace_with(tmp_path, anchors, [[10**12 + 500], [10**12 + 1000, 5000, 4999]])
    trace = alloctrace.load(path)
    assert len(trace.events()) == 4 and trace.integrity.state == "complete" and trace.verify().ok
    assert np.isfinite(times_of(path)).all()


def test_no_time_passes(tmp_path: Path) -> None:
    """All events and anchors have the same time: every command answers."""
    same = (10**9, 10**9, 10**18)
    path = trace_with(tmp_path, [same, same, same], [[10**9] * 30, [10**9] * 30])
    assert times_of(path) == [0.0] * 60
    show_to_faces({path: every_output.cheap_faces()})
