"""Clocks that jump, stop or change their rate while a trace is written."""

from __future__ import annotations

import json
from pathlib import Path

import every_output
import hostile_traces
import numpy as np
import pytest
from extreme_traces import location
from hostile_traces import DEFINITIONS, END, EVENTS, HEADER
from test_hostile_traces import check_outputs

import pytorch_alloctrace as alloctrace

SECOND = 10**9


def write_trace(tmp_path: Path, anchors: list[tuple[int, int, int]], counters: list[list[int]]) -> Path:
    """Write a trace whose blocks have events at these counters. Anchors: the first, then one after each block."""
    path, first = tmp_path / "t.alloctrace", 0
    parts = [
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
        parts.append(hostile_traces.block(EVENTS, payload, first, len(rows), begin, end))
        first += len(rows)
    parts.append(hostile_traces.block(END, json.dumps({}).encode(), first, 0, anchors[-1], anchors[-1]))
    path.write_bytes(b"".join(parts))
    return path


def times_of(path: Path) -> list[float]:
    """Return the seconds from the first event to each event."""
    times = alloctrace.load(path).events()["time_ns"].to_numpy()
    return [float(time) for time in (times - times[0]) / SECOND]


@pytest.mark.parametrize("step", [-3600, 3600])
def test_times_follow_monotonic_clock_when_wall_clock_is_set(tmp_path: Path, step: int) -> None:
    """The trace begins at the wall clock's time; later times follow the monotonic clock."""
    wall = 1_700_000_000
    anchors = [(at * SECOND, at * SECOND, (wall + at + (step if at > 1 else 0)) * SECOND) for at in (1, 2, 3, 4)]
    path = write_trace(tmp_path, anchors, [[int((at + part) * SECOND) for part in (0.25, 0.5)] for at in (1, 2, 3)])
    assert times_of(path) == pytest.approx([0, 0.25, 1, 1.25, 2, 2.25], abs=1e-6)
    trace = alloctrace.load(path)
    assert trace.events()["time_ns"].iloc[0] == pytest.approx((wall + 1.25) * SECOND, abs=1000)
    assert trace.integrity.state == "complete" and trace.verify().ok


def test_times_are_interpolated_when_counter_changes_its_rate(tmp_path: Path) -> None:
    """Each block has its own rate, as on a processor that saves power."""
    anchors = [(0, SECOND, 9 * SECOND), (1000, 2 * SECOND, 10 * SECOND), (1010, 3 * SECOND, 11 * SECOND)]
    path = write_trace(tmp_path, anchors, [[100, 600], [1005, 1009]])
    assert times_of(path) == pytest.approx([0, 0.5, 1.4, 1.8], abs=1e-6)


def test_trace_is_complete_when_counter_jumps_back(tmp_path: Path) -> None:
    """As in a program that moved to another machine or to an unsynchronized core."""
    anchors = [(10**12, SECOND, 9 * SECOND), (10**12 + 1000, 2 * SECOND, 10 * SECOND), (5000, 3 * SECOND, 11 * SECOND)]
    path = write_trace(tmp_path, anchors, [[10**12 + 500], [10**12 + 1000, 5000, 4999]])
    trace = alloctrace.load(path)

    assert len(trace.events()) == 4 and trace.integrity.state == "complete" and trace.verify().ok
    assert np.isfinite(times_of(path)).all()


def test_commands_answer_when_all_times_are_equal(tmp_path: Path) -> None:
    same = (10**9, 10**9, 10**18)
    path = write_trace(tmp_path, [same, same, same], [[10**9] * 30, [10**9] * 30])
    assert times_of(path) == [0.0] * 60
    check_outputs({path: every_output.cheap_outputs()})
