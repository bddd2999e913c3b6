"""Positions and ranges: all events after `since`, up to and including `until`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from format_reader import BLOCK_HEADER, EVENTS, TraceFile
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_events import BEGIN, MIB, event, freed, make_trace

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.positions import time_of

MARK_NAME = 4
"""Index of the string that the probe defines for names of marks."""


def rows_of(choices: list[str]) -> list[dict[str, int]]:
    """Return events: allocations at distinct addresses, frees of the oldest block, steps and marks."""
    rows, live, step = [event("segment_alloc", address=BEGIN, size=20 * MIB)], [], 0
    for number, kind in enumerate(choices):
        if kind == "alloc":
            live.append((BEGIN + 4096 * number, 512 + number))
            rows.append(event("alloc", address=live[-1][0], size=live[-1][1], stack=1 + number % 3))
        elif kind == "free" and live:
            rows += freed(*live.pop(0))
        elif kind == "step":
            rows.append(event("step", size=step))
            step += 1
        elif kind == "mark":
            rows.append(event("mark", size=MARK_NAME))
    return rows


def live_after(events: pd.DataFrame) -> dict[int, int]:
    """Return the sizes of the blocks that are live after these events, by address."""
    live: dict[int, int] = {}
    for kind, address, size in zip(events["kind"], events["address"], events["requested_bytes"], strict=True):
        if kind == "alloc":
            live[int(address)] = int(size)
        elif kind == "free_requested":
            live.pop(int(address), None)
    return live


@settings(max_examples=40)
@given(choices=st.lists(st.sampled_from(["alloc", "alloc", "free", "step", "mark"]), max_size=40), data=st.data())
def test_ranges_partition_the_events(tmp_path: Path, choices: list[str], data: Any) -> None:
    rows = rows_of(choices)
    trace = make_trace(tmp_path / "t.alloctrace", rows)
    steps = len(trace.steps())
    positions = ["end", *range(-1, len(rows)), "0.0s"]
    positions += [f"step:{number}" for number in range(steps + 1 if steps else 0)]
    positions += [f"mark:{name}" for name in trace.marks()["name"].unique()]
    positions += ["peak", "peak:reserved"] if "alloc" in choices else []
    a, b = data.draw(st.sampled_from(positions), label="a"), data.draw(st.sampled_from(positions), label="b")
    a, b = sorted((a, b), key=trace._recorded.first_event_after)
    events = trace.events()
    parts = [trace.events(until=a), trace.events(since=a, until=b), trace.events(since=b)]

    assert [seq for part in parts for seq in part["seq"]] == events["seq"].tolist() == list(range(len(rows)))
    for at, before in ((a, parts[0]), (b, trace.events(until=b))):
        assert trace.live(at).set_index("address")["requested_bytes"].to_dict() == live_after(before)
        assert before["seq"].tolist() == list(range(trace._recorded.first_event_after(at)))


def test_range_of_step_ends_with_its_event(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.alloctrace", rows_of(["alloc", "step", "alloc", "alloc", "step", "mark", "alloc"]))
    second = trace.events(since="step:0", until="step:1")
    assert list(second["kind"]) == ["alloc", "alloc", "step"] and list(second["step"]) == [1, 1, 1]
    assert list(trace.events(since="step:1")["kind"]) == ["mark", "alloc"]

    [name] = trace.marks()["name"]
    assert list(trace.events(since="step:1", until=f"mark:{name}")["kind"]) == ["mark"]
    assert list(trace.events(since=f"mark:{name}")["kind"]) == ["alloc"]
    assert trace.events(since="step:2").empty and trace.events(since="end").empty
    assert len(trace.events(until="step:2")) == trace.integrity.events
    long_ago = datetime.datetime(2001, 1, 1)
    numbers = (trace.integrity.events, 10**9, -2)
    for position in ("soon", "5h", "min", "step:7", "mark:none", "step:", "5e-05s", *numbers, "99.5s", long_ago):
        with pytest.raises(alloctrace.PositionError):
            trace.events(since=position)
        with pytest.raises(alloctrace.PositionError):
            trace.live(position)


def test_times_in_different_units_are_one_position(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.alloctrace", rows_of(["alloc", "step", "alloc"]))

    times = [trace._recorded.time_ns(at) - trace.begin_ns for at in ("0.0000s", "0.0ms", "0min")]

    assert len(set(times)) == 1
    begin_ns = 10**18
    assert [time_of(at, begin_ns) for at in ("100ms", "0.1s", "2min", "120s")] == [
        begin_ns + ns for ns in (10**8, 10**8, 120 * 10**9, 120 * 10**9)
    ]


def test_event_numbers_need_no_replay(tmp_path: Path) -> None:
    trace = make_trace(tmp_path / "t.alloctrace", rows_of(["alloc", "step", "alloc"]))
    assert len(trace.events(since=1, until="end", columns=("seq",))) == 2
    assert "replay" not in vars(trace._recorded)


def test_inefficiency_in_first_microseconds_is_diagnosed(tmp_path: Path) -> None:
    """Times were formatted as text: 2.5e-06s was not a valid position."""
    rows = [event("segment_alloc", address=BEGIN, size=100 * MIB), event("alloc", address=BEGIN, size=100 * MIB)]
    trace = make_trace(tmp_path / "t.alloctrace", [*rows, event("free_requested", address=BEGIN, size=100 * MIB)])

    assert (trace.end_ns - trace.begin_ns) / 2000 < 100_000, "the run is too long for a time in scientific notation"
    assert "pending" in [finding.kind for finding in trace.diagnose()]


def test_last_steps_of_corrupt_trace_are_measured(tmp_path: Path) -> None:
    """The last steps were ignored, since the count of events was used as the end of the trace."""
    path = tmp_path / "t.alloctrace"
    rows = [event("segment_alloc", address=BEGIN, size=200 * MIB)]
    for step in range(40):
        size, stack = (4096, 2) if step >= 37 else (512, 1)
        for number in range(300):
            rows.append(event("alloc", address=BEGIN + 4096 * number, size=size, stack=stack))
            rows += freed(BEGIN + 4096 * number, size)
        rows.append(event("step", size=step))
    make_trace(path, rows)
    corrupt_blocks = [block for block in TraceFile(path).blocks if block.type == EVENTS][1:4]
    data = bytearray(path.read_bytes())
    for block in corrupt_blocks:
        data[block.offset + BLOCK_HEADER + len(block.payload) // 2] ^= 0xFF
    path.write_bytes(data)

    trace = alloctrace.load(path)

    assert trace.integrity.missing_events == sum(block.count for block in corrupt_blocks) > 0
    recorded = trace._recorded
    assert recorded.end_seq == trace.events()["seq"].iloc[-1] + 1 > trace.integrity.events
    [larger] = trace.usage().query("largest_bytes == 4096")["allocations_per_step"]
    assert larger > 0
    assert recorded.first_event_after("end") == recorded.end_seq
    assert recorded.positions.step_at(recorded.end_seq - 1) == 39
