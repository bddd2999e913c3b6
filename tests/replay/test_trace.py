"""The reading API, on a recorded program."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from marked_programs import line_with
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

PROGRAM = """
import torch, pytorch_alloctrace as alloctrace

def small():
    return torch.empty(10, dtype=torch.uint8)

def large():
    return torch.empty(1000, dtype=torch.uint8)

def through_a_library():
    return torch.nn.Linear(2, 3, bias=False, device="cpu")

alloctrace.enable("t.alloctrace")
kept = []
for step in range(4):
    kept.append(small())
    large()
    large()
    alloctrace.step()
layer = through_a_library()
alloctrace.mark("after the layer")
peak = torch.empty(5000, dtype=torch.uint8)
del peak
alloctrace.disable()
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> alloctrace.Trace:
    return alloctrace.load(run_source(tmp_path_factory.mktemp("program"), PROGRAM) / "t.alloctrace")


def test_events_have_the_documented_columns(trace: alloctrace.Trace) -> None:
    events = trace.events()
    assert tuple(events.columns) == alloctrace.trace.EVENT_COLUMNS
    assert list(events["seq"]) == list(range(len(events)))
    of_the_program = events[events["kind"] != "memory"]  # sampled on a thread of its own
    assert of_the_program["time_ns"].is_monotonic_increasing
    assert trace.begin_ns <= events["time_ns"].iloc[0] <= events["time_ns"].iloc[-1] <= trace.end_ns
    of_every_run = {"alloc", "free_completed", "step", "mark", "memory", "role"}
    assert set(events["kind"]) - {"garbage_collection"} == of_every_run, "a collection may occur in between"
    allocs = events[events["kind"].isin(["alloc", "free_completed"])]
    assert set(allocs["device"]) == {"cpu"} and set(allocs["pool"]) == {(0, 0)}
    assert (allocs["requested_bytes"] > 0).all(), "a free differs from its alloc in size"
    assert list(trace.events(columns=["requested_bytes", "seq"]).columns) == ["requested_bytes", "seq"]
    with pytest.raises(ValueError, match="colour"):
        trace.events(columns=["colour"])
    pd.testing.assert_frame_equal(pd.concat(trace.events(chunk=1), ignore_index=True), events)


def test_usage_by_line_stack_function_and_file_sums_allocations(trace: alloctrace.Trace) -> None:
    usage = trace.usage().set_index("line")
    small = usage.loc[line_with("return torch.empty(10, dtype=torch.uint8)", PROGRAM)]
    assert (small["allocations"], small["total_bytes"], small["live_bytes"], small["live_blocks"]) == (4, 40, 40, 4)
    assert small["function"] == "small" and small["source"] == "    return torch.empty(10, dtype=torch.uint8)"
    large = usage.loc[line_with("return torch.empty(1000, dtype=torch.uint8)", PROGRAM)]
    columns = ["allocations", "total_bytes", "live_bytes", "largest_bytes"]
    assert large[columns].tolist() == [8, 8000, 0, 1000]
    # Allocations of torch.nn belong to the user's line that calls it.
    layer = usage.loc[line_with('return torch.nn.Linear(2, 3, bias=False, device="cpu")', PROGRAM)]
    assert layer["live_bytes"] == 24 and layer["user"]
    frames = trace.frames(layer["stack_id"])
    assert "linear.py" in frames[0].filename + frames[1].filename and frames[-1].function == "<module>"
    total = trace.usage()["total_bytes"].sum()
    for by in ("stack", "function", "file"):
        assert trace.usage(by=by)["total_bytes"].sum() == total
    assert len(trace.usage(by="file")) == 1
    functions = trace.usage(by="function").set_index("function")
    assert functions.loc["large", "allocations"] == 8
    # large() is called from two lines: two stacks, one line.
    stacks = trace.usage(by="stack")
    assert (stacks["function"] == "large").sum() == 2
    with pytest.raises(ValueError, match="colour"):
        trace.usage(by="colour")


def test_live_memory_at_steps_marks_and_peak_matches_program(trace: alloctrace.Trace) -> None:
    assert list(trace.steps()["live_bytes"]) == [10, 20, 30, 40]
    assert list(trace.marks()["name"]) == ["after the layer"]
    assert sorted(trace.live()["requested_bytes"]) == [10, 10, 10, 10, 24]
    assert sorted(trace.live(at="step:1")["requested_bytes"]) == [10, 10]
    assert list(trace.live(at="step:1")["step"]) == [0, 1]
    assert trace.live(at="peak")["requested_bytes"].max() == 5000
    assert trace.peak().bytes == 5064 == trace.live(at="peak")["requested_bytes"].sum()
    assert trace.live(at=trace.peak().seq - 1)["requested_bytes"].sum() == 64
    assert trace.live(at="mark:after the layer")["requested_bytes"].sum() == 64
    assert trace.usage("peak")["live_bytes"].sum() == 5064


@pytest.mark.parametrize("points", [1, 7, 1999])
def test_timeline_of_any_number_of_points_merges_intervals(trace: alloctrace.Trace, points: int) -> None:
    finest, table = trace.timeline(60_000), trace.timeline(points)
    rows = [*table["time_ns"].searchsorted(finest["time_ns"], side="right") - 1]
    groups = finest.groupby(rows)
    for name in table.columns:
        if name.endswith("_min"):
            assert [*table[name]] == [*groups[name].min()]
        elif name.endswith("_max"):
            assert [*table[name]] == [*groups[name].max()]
        elif name not in ("seq", "time_ns", "device", "outside_bytes", "external_fragmentation"):
            assert [*table[name]] == [*groups[name].last()]
    assert [*table["seq"]] == [group.loc[group["allocated_bytes_max"].idxmax(), "seq"] for _, group in groups]
    lengths = [*table["time_ns"].diff()[1:], trace.end_ns - table["time_ns"].iloc[-1]]
    assert max(lengths) - min(lengths) <= (trace.end_ns - trace.begin_ns) / 60_000 + 2


@pytest.mark.parametrize("points", [60_001, 180_000])
def test_timeline_with_more_points_than_measured_repeats_values(trace: alloctrace.Trace, points: int) -> None:
    replay = trace._recorded.replay
    measured, table = trace.timeline(60_000), trace.timeline(points)
    assert trace._recorded.replay is replay and len(table) == points
    begins = table["time_ns"]
    assert begins.is_monotonic_increasing
    rows = measured["time_ns"].searchsorted(begins, side="right") - 1
    # An interval that overlaps two measured intervals may show either.
    following = (rows + 1).clip(max=len(measured) - 1)
    for name in ("requested_bytes", "blocks", "requested_bytes_max", "requested_bytes_min"):
        here, after = measured[name].to_numpy()[rows], measured[name].to_numpy()[following]
        either = {"_max": here.clip(min=after), "_min": here.clip(max=after)}.get(name[-4:], after)
        values = table[name].to_numpy()
        assert ((values == here) | (values == either)).all()
    assert table["requested_bytes_max"].max() == 5064 and table["requested_bytes"].iloc[-1] == 64


def test_timeline_of_1_point_is_at_peak_and_of_0_points_raises(trace: alloctrace.Trace) -> None:
    [point] = trace.timeline(1).to_dict("records")
    assert (point["seq"], point["requested_bytes_max"], point["requested_bytes"]) == (trace.peak().seq, 5064, 64)
    with pytest.raises(ValueError, match="0"):
        trace.timeline(0)


def test_library_in_user_paths_is_user_code(trace: alloctrace.Trace) -> None:
    import torch

    folder = str(Path(torch.__file__).parent)
    reloaded = alloctrace.load(trace.path, user_paths=[folder])
    assert any(filename.startswith(folder) for filename in reloaded.usage()["filename"])


def test_unknown_stack_or_spool_raises_and_stack_0_has_no_frames(trace: alloctrace.Trace) -> None:
    assert trace.frames(0) == []
    with pytest.raises(IndexError):
        trace.frames(10**6)
    with pytest.raises(alloctrace.TraceError, match=r"no spool .*run\.spol"):
        alloctrace.load(trace.path, spool="run.spol")
