"""Snapshots of all releases, with and without a history, as traces."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command
from made_up_snapshots import BASE, MIB, RELEASES, DeviceHistory, frames, snapshot, training
from marked_programs import run_analyze
from replay_oracle import BLOCK_COLUMNS, rows_of, without_stale_sizes

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.converting.stacks import Function, line_table

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(data: Any) -> Path:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(data, protocol=4))
        return path

    return written


def converted(path: Path) -> alloctrace.Trace:
    return alloctrace.load(alloctrace.convert(path, overwrite=True).trace)


# What releases write differently: made_up_snapshots. Frames of C++ are the same in all.
@pytest.mark.parametrize(("release", "native"), [*((release, False) for release in RELEASES), ("2.15", True)])
def test_each_release(write: Write, release: str, native: bool) -> None:
    maker = training(release, native=native)
    trace = converted(write(snapshot(release, maker)))
    assert trace.verify().ok and trace.verify().agreeing == 1
    counts = trace._recorded.kind_counts
    kinds = ("alloc", "free_requested", "free_completed", "segment_alloc", "oom")
    assert [counts[name] for name in kinds] == [16, 10, 9, 1, 1]
    lines = trace.usage().set_index("line")
    assert lines["live_bytes"].to_dict() == {11: 4 * MIB, 12: 0, 13: 5 * (MIB + 1024)}
    assert set(lines["filename"]) == {"/home/user/train.py"}  # neither torch's nor those of C++
    assert trace.header["program"] == "/home/user/train.py"
    innermost = trace.frames(int(trace.events(kinds=["alloc"])["stack_id"].iloc[0]))
    assert [(frame.function, frame.filename, frame.line) for frame in innermost] == [
        (frame["name"], frame["filename"], frame["line"]) for frame in frames(11, native=native)
    ]
    (refused,) = trace.ooms()
    assert (refused.request.requested_bytes, refused.site.line) == (64 * MIB, 30)
    blocks = trace.blocks()
    assert blocks["state"].value_counts()["active_pending_free"] == 1


def test_times_and_order(write: Write) -> None:
    """Two devices, whose entries go by time."""
    makers = [training("2.9", device) for device in (0, 1)]
    trace = converted(write(snapshot("2.9", *makers)))
    assert trace.devices == ["cuda:0", "cuda:1"]
    events = trace.events(kinds=["alloc"])
    assert events["device"].tolist() == ["cuda:0", "cuda:1"] * 16
    assert events["time_ns"].is_monotonic_increasing
    assert events["time_ns"].iloc[0] == (makers[0].history[1]["time_us"]) * 1000
    assert trace.begin_ns == makers[0].history[0]["time_us"] * 1000
    assert trace.end_ns == max(maker.history[-1]["time_us"] for maker in makers) * 1000
    assert trace.verify().agreeing == 2


@pytest.mark.parametrize("last", [*range(0, 38, 3), 35, 37])
def test_a_history_that_begins_in_mid_run(write: Write, last: int) -> None:
    """What was there before follows from the end, however much of the history is there."""
    maker = training("2.11")
    assert len(maker.history) == 37
    whole = converted(write(snapshot("2.11", maker)))
    path = write(snapshot("2.11", maker, last=last))
    done = alloctrace.convert(path, overwrite=True)
    trace = alloctrace.load(done.trace)
    assert done.faults == 0
    assert done.mid_run == (("cuda:0",) if 0 < last < 37 else ())
    assert trace.verify().ok
    # Each event of the history finds the same blocks as in the whole.
    kinds = ["alloc", "free_completed"]
    events, all_events = trace.events(kinds=kinds), whole.events(kinds=kinds)
    for at, then in zip(events["seq"][::-1], all_events["seq"][::-1], strict=False):
        ours, expected = (rows_of(one.blocks(int(seq)), BLOCK_COLUMNS) for one, seq in ((trace, at), (whole, then)))
        assert without_stale_sizes(ours) == without_stale_sizes(expected)
    # Of what is live at the end the lines are known, though it was there before; when it was made is not.
    live = trace.live().set_index("address")
    assert live["line"].to_dict() == whole.live().set_index("address")["line"].to_dict()
    made = {int(address) for address in trace.events(kinds=["alloc"])["address"]}
    assert {int(address) for address in live.index[live["alloc_seq"].isna()]} == {*map(int, live.index)} - made


@pytest.mark.parametrize("histories", [[], [[]]])
def test_snapshot_without_a_history_is_read_by_api_and_verbs(write: Write, histories: list[Any]) -> None:
    """Snapshots with a history are compared with recordings in test_snapshot_verdicts."""
    maker = training("2.11")
    path = write({**snapshot("2.11", maker), "device_traces": histories})
    os.utime(path, ns=(10**18, 10**18))
    done = alloctrace.convert(path)
    assert (done.events, done.devices, done.mid_run, done.frames) == (0, ("cuda:0",), (), True)
    trace = alloctrace.load(done.trace)
    assert trace.verify().ok
    assert trace.begin_ns == 10**18
    assert trace.peak().bytes == maker.segment["allocated_size"]
    assert trace.usage("peak").set_index("line")["live_bytes"].to_dict() == {11: 4 * MIB, 13: 5 * (MIB + 1024)}
    for verb in ("diagnose", "leaks", "peak", "sites", "timeline", "fragmentation", "oom", "verify"):
        done = run_command(path.parent, [verb, "snapshot.alloctrace"])
        assert (done.returncode, done.stderr) == (0, ""), verb


def test_the_list_of_very_old_releases(write: Write) -> None:
    """Segments alone; blocks have no address, and their stack in a history of their own."""
    segment = training("1.13").segment
    for block in segment["blocks"]:
        del block["address"], block["requested_size"]
        stack = block.pop("frames")
        if block["state"] != "inactive":
            block["history"] = [{"addr": 0, "real_size": block["size"] - 500, "frames": stack}]
    for name in ("requested_size", "segment_pool_id", "is_expandable"):
        del segment[name]
    trace = converted(write([segment]))
    assert trace.verify().ok
    assert trace.live()["line"].tolist() == [11, *[13] * 5]
    assert trace.live()["requested_bytes"].iloc[0] == 4 * MIB - 500


def test_what_is_left_out_is_said(write: Write) -> None:
    maker = training("2.14")
    maker.add_entry("annotate")
    path = write(snapshot("2.14", maker))
    done = alloctrace.convert(path)
    assert done.skipped == {"annotate": 1, "pinned host memory": 3}
    text = run_analyze(path.parent, "convert", "snapshot.pickle", "-o", "again.alloctrace")
    assert "Left out: 1 event of annotate" in text and "Left out: 3 events of pinned host memory" in text


def test_regions_and_steps_of_the_profiler(write: Write) -> None:
    maker = training("2.11")
    data = snapshot("2.11", maker)
    times = [entry["time_us"] for entry in maker.history]
    data["external_annotations"] = [
        {"name": name, "stage": stage, "device": 0, "time_us": at}
        for number in range(4)
        for name, stage, at in (
            (f"ProfilerStep#{number}", "START", times[4 * number + 2]),
            (f"ProfilerStep#{number}", "END", times[4 * number + 5]),
        )
    ]
    trace = converted(write(data))
    assert trace.steps()["step"].tolist() == [0, 1, 2, 3]
    assert trace.marks()["name"].tolist() == [f"ProfilerStep#{number}" for number in range(4)]


def test_frames_of_forward_stand_in_for_those_of_backward(write: Write) -> None:
    maker = DeviceHistory("2.13")
    maker.allocate(MIB + 512, 17)
    entry = maker.history[-1]
    entry["forward_frames"] = entry["frames"]
    entry["frames"] = []
    assert converted(write(snapshot("2.13", maker))).usage()["line"].tolist() == [17]


def test_a_history_that_does_not_fit(write: Write) -> None:
    """It was paused: a block that is gone was never freed, and one is there that was never made."""
    maker = training("2.11")
    del maker.history[5]
    del maker.history[-5:-3]
    done = alloctrace.convert(write(snapshot("2.11", maker)))
    assert done.faults > 0
    verified = alloctrace.load(done.trace).verify()
    assert verified.contradictions or verified.differences


def test_what_snapshot_returns_needs_no_file(tmp_path: Path) -> None:
    done = alloctrace.convert(snapshot("2.11", training("2.11")), tmp_path / "t.alloctrace")
    assert alloctrace.load(done.trace).verify().ok
    with pytest.raises(alloctrace.TraceError, match="pass a path"):
        alloctrace.convert(snapshot("2.11", training("2.11")))


def test_a_trace_that_is_there_stays(write: Write) -> None:
    path = write(snapshot("2.11", training("2.11")))
    there = path.with_suffix(".alloctrace")
    there.write_text("mine")
    with pytest.raises(alloctrace.TraceError, match="exists already"):
        alloctrace.convert(path)
    assert there.read_text() == "mine"
    assert [one.name for one in sorted(path.parent.iterdir())] == ["snapshot.alloctrace", "snapshot.pickle"]
    assert alloctrace.load(alloctrace.convert(path, overwrite=True).trace).verify().ok
    with pytest.raises(alloctrace.TraceError, match="is the snapshot itself"):
        alloctrace.convert(path, path, overwrite=True)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "no segments"),
        (7, "no segments"),
        ({"segments": 5}, "segments are not a list"),
        ({"segments": [5]}, "not a dictionary"),
        ({"segments": [{"address": "x", "total_size": 5, "blocks": []}]}, "address is str"),
        ({"segments": [{"address": 4096, "total_size": 512, "blocks": []}]}, "do not fill it"),
        ({"segments": [{"device": 10**9, "address": 0, "total_size": 0, "blocks": []}]}, "device 1000000000"),
        ({"segments": [training("2.11").segment] * 2}, "segments overlap"),
        ({"segments": [], "device_traces": 7}, "device_traces are not a list"),
        ({"segments": [], "device_traces": [[{}]]}, "no action"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "time_us": -1}]]}, "not a time before the year 2116"),
        ({"segments": [], "device_traces": [[]] * 300 + [[{"action": "alloc"}]]}, "device 300"),
    ],
)
def test_what_is_no_snapshot_is_refused(write: Write, data: Any, says: str) -> None:
    path = write(data)
    with pytest.raises(alloctrace.TraceError, match=says):
        alloctrace.convert(path)
    assert [one.name for one in path.parent.iterdir()] == ["snapshot.pickle"]


def test_the_command(write: Write, tmp_path: Path) -> None:
    write(snapshot("2.11", training("2.11"), last=20))
    data = json.loads(run_analyze(tmp_path, "convert", "snapshot.pickle", "--json"))
    device = ["cuda:0"]
    rest = {"devices": device, "mid_run": device, "frames": True, "faults": 0, "skipped": {}}
    assert data.pop("format") == "pytorch_alloctrace.convert" and data.pop("format_version") == 1
    assert data == {"trace": "snapshot.alloctrace", "events": 20, **rest}
    for arguments, says in (
        (["convert", "nothing.pickle"], "No such file"),
        (["convert", "snapshot.alloctrace"], "is a trace already"),
        (["convert", "."], "is not a file"),
        (["convert", "snapshot.pickle"], "exists already: give another path with -o, or --overwrite"),
        (["snapshot.pickle"], "alloctrace convert"),
    ):
        assert says in run_analyze(tmp_path, *arguments, status=2)


def test_a_huge_address_is_no_mistake(write: Write) -> None:
    """Some releases print addresses as signed numbers."""
    maker = training("2.11")
    data = snapshot("2.11", maker)
    shift = 2**64 - 2**48 - BASE
    for one in [*data["segments"], *data["segments"][0]["blocks"]]:
        one["address"] += shift - 2**64
    for entry in maker.history:
        if "addr" in entry:
            entry["addr"] += shift - 2**64
    trace = converted(write(data))
    assert trace.verify().ok
    assert int(trace.segments()["address"].iloc[0]) == -(2**48)


def test_lines_in_the_order_in_which_they_were_seen() -> None:
    function = Function("train", "train.py")
    after = None
    for seen in (12, 13, 11, 12, 13, 30, 11, 12):  # a call over three lines, in a loop; line 30 in one round
        function.insert_line(seen, after)
        after = seen
    assert function.lines == [12, 13, 30, 11]
    function.insert_line(20, None)
    assert function.lines == [12, 13, 20, 30, 11]
    assert line_table([5, 5 + 300, 7]) == bytes([2, 0, 0, 127, 0, 127, 2, 46, 0, 0x81, 0, 0x81, 2, 0x100 - 44])
