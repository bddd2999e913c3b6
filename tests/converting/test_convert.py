"""Conversion of torch's snapshots of all releases, with and without a history."""

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
from pytorch_alloctrace.reading.names import NO_STACK

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_snapshot(data: Any) -> Path:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(data, protocol=4))
        return path

    return write_snapshot


def convert_and_load(path: Path) -> alloctrace.Trace:
    return alloctrace.load(alloctrace.convert(path, overwrite=True).trace)


# made_up_snapshots has the differences between releases. C++ frames are the same in all, and left out.
@pytest.mark.parametrize(("release", "native"), [*((release, False) for release in RELEASES), ("2.15", True)])
def test_snapshot_of_each_release_is_converted(write: Write, release: str, native: bool) -> None:
    maker = training(release, native=native)
    trace = convert_and_load(write(snapshot(release, maker)))
    assert trace.verify().ok and trace.verify().agreeing == 1
    counts = trace._recorded.kind_counts
    kinds = ("alloc", "free_requested", "free_completed", "segment_alloc", "oom")
    assert [counts[name] for name in kinds] == [16, 10, 9, 1, 1]
    lines = trace.usage().set_index("line")
    assert lines["live_bytes"].to_dict() == {11: 4 * MIB, 12: 0, 13: 5 * (MIB + 1024)}
    assert set(lines["filename"]) == {"/home/user/train.py"}  # no file of torch or C++
    assert trace.header["program"] == "/home/user/train.py"
    innermost = trace.frames(int(trace.events(kinds=["alloc"])["stack_id"].iloc[0]))
    assert [(frame.function, frame.filename, frame.line) for frame in innermost] == [
        (frame["name"], frame["filename"], frame["line"]) for frame in frames(11)
    ]
    (failed,) = trace.ooms()
    assert (failed.request.requested_bytes, failed.site.line) == (64 * MIB, 30)
    blocks = trace.blocks()
    assert blocks["state"].value_counts()["active_pending_free"] == 1


_ENGINE = [
    ("torch::autograd::Node::operator()(std::vector<at::Tensor>&&)", "", 0),
    ("torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&)", "??", 0),
    ("execute_native_thread_routine", "thread48.o", 0),
    ("std::__invoke_impl<void>(std::__invoke_other)", "/usr/include/c++/11/functional", 61),
    ("clone", "??", 0),
]
_ALLOCATOR = [("torch::unwind::unwind()", "??", 0), ("c10::cuda::malloc(long)", "CUDACachingAllocator.cpp", 0)]
_PYTHON = [("forward", "/home/user/train.py", 7), ("<module>", "/home/user/train.py", 40)]


@pytest.mark.parametrize(
    ("stack", "site", "is_user"),
    [
        pytest.param(
            [("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0), *_ENGINE],
            "MmBackward0, line of forward unknown",
            False,
            id="node",
        ),
        pytest.param([("torch::autograd::validate_outputs()", "??", 0), *_ENGINE[1:]], NO_STACK, False, id="engine"),
        pytest.param([("at::cuda::getNewWorkspace()", "??", 0), *_PYTHON], "cuBLAS workspace", False, id="workspace"),
        pytest.param(
            [("at::empty_cuda(long)", "/pytorch/aten/EmptyTensor.cpp", 12), _PYTHON[0], *_ENGINE[-3:], _PYTHON[1]],
            "/home/user/train.py:7",
            True,
            id="python",
        ),
        pytest.param([("my_op(at::Tensor)", "/home/user/op.cpp", 9), *_PYTHON], "/home/user/train.py:7", True, id="op"),
    ],
)
def test_native_frames_are_no_site(write: Write, stack: list[tuple[str, str, int]], site: str, is_user: bool) -> None:
    maker = DeviceHistory("2.15")
    maker.allocate(3 * MIB, 11)
    named = [dict(zip(("name", "filename", "line"), frame, strict=True)) for frame in (*_ALLOCATOR, *stack)]
    maker.history[-1]["frames"] = named

    trace = convert_and_load(write(snapshot("2.15", maker)))

    (row,) = trace.usage("end").to_dict("records")
    assert (row["site"], row["user"], row["live_bytes"]) == (site, is_user, 3 * MIB)
    shown = trace.frames(row["stack_id"])
    assert [frame.function for frame in shown] == ([name for name, _, _ in _PYTHON] if is_user else [])
    (role,) = trace.usage("end", by="role")["role"]
    assert (role == "library workspace") == (site == "cuBLAS workspace")


def test_events_of_two_devices_are_ordered_by_time(write: Write) -> None:
    makers = [training("2.9", device) for device in (0, 1)]
    trace = convert_and_load(write(snapshot("2.9", *makers)))

    assert trace.devices == ["cuda:0", "cuda:1"]
    events = trace.events(kinds=["alloc"])
    assert events["device"].tolist() == ["cuda:0", "cuda:1"] * 16
    assert events["time_ns"].is_monotonic_increasing
    assert events["time_ns"].iloc[0] == (makers[0].history[1]["time_us"]) * 1000
    assert trace.begin_ns == makers[0].history[0]["time_us"] * 1000
    assert trace.end_ns == max(maker.history[-1]["time_us"] for maker in makers) * 1000
    assert trace.verify().agreeing == 2


@pytest.mark.parametrize("last", [*range(0, 38, 3), 35, 37])
def test_truncated_history_has_blocks_of_complete_history(write: Write, last: int) -> None:
    """Blocks older than the history are derived from the final state."""
    maker = training("2.11")
    assert len(maker.history) == 37
    complete = convert_and_load(write(snapshot("2.11", maker)))
    path = write(snapshot("2.11", maker, last=last))
    conversion = alloctrace.convert(path, overwrite=True)
    trace = alloctrace.load(conversion.trace)
    assert conversion.faults == 0
    assert conversion.mid_run == (("cuda:0",) if 0 < last < 37 else ())
    assert trace.verify().ok
    # Before each event of the history the blocks equal those of the complete history.
    kinds = ["alloc", "free_completed"]
    events, all_events = trace.events(kinds=kinds), complete.events(kinds=kinds)
    for at, then in zip(events["seq"][::-1], all_events["seq"][::-1], strict=False):
        rows, expected = (rows_of(t.blocks(int(seq)), BLOCK_COLUMNS) for t, seq in ((trace, at), (complete, then)))
        assert without_stale_sizes(rows) == without_stale_sizes(expected)
    # Live blocks older than the history have a line, but no sequence number of their allocation.
    live = trace.live().set_index("address")
    assert live["line"].to_dict() == complete.live().set_index("address")["line"].to_dict()
    allocated = {int(address) for address in trace.events(kinds=["alloc"])["address"]}
    assert {int(address) for address in live.index[live["alloc_seq"].isna()]} == {*map(int, live.index)} - allocated


@pytest.mark.parametrize("histories", [[], [[]]])
def test_snapshot_without_history_is_read_by_api_and_commands(write: Write, histories: list[Any]) -> None:
    """Snapshots with a history are compared with recordings in test_snapshot_verdicts."""
    maker = training("2.11")
    path = write({**snapshot("2.11", maker), "device_traces": histories})
    os.utime(path, ns=(10**18, 10**18))
    conversion = alloctrace.convert(path)
    assert (conversion.events, conversion.devices, conversion.mid_run, conversion.frames) == (0, ("cuda:0",), (), True)
    trace = alloctrace.load(conversion.trace)
    assert trace.verify().ok
    assert trace.begin_ns == 10**18
    assert trace.peak().bytes == maker.segment["allocated_size"]
    assert trace.usage("peak").set_index("line")["live_bytes"].to_dict() == {11: 4 * MIB, 13: 5 * (MIB + 1024)}
    for command in ("diagnose", "leaks", "peak", "sites", "timeline", "fragmentation", "oom", "verify"):
        process = run_command(path.parent, [command, "snapshot.alloctrace"])
        assert (process.returncode, process.stderr) == (0, ""), command


@pytest.mark.parametrize(("is_complete", "status"), [(True, 0), (False, 3)])
def test_peak_limit_is_unknown_if_history_lacks_the_beginning(write: Write, is_complete: bool, status: int) -> None:
    maker = training("2.11")
    data = snapshot("2.11", maker)
    # A run that ended out of memory would have needed more.
    histories = [[event for event in history if event["action"] != "oom"] for history in data["device_traces"]]
    alloctrace.convert(path := write({**data, "device_traces": histories if is_complete else []}))

    exceeded = run_analyze(path.parent, "peak", "snapshot.alloctrace", "--fail-above", "1MiB", status=1)
    text = run_analyze(path.parent, "peak", "snapshot.alloctrace", "--fail-above", "1TiB", status=status)
    fits = run_analyze(path.parent, "peak", "snapshot.alloctrace", "--fits", "80GB", status=status)

    assert "FAIL" in exceeded and ("UNKNOWN" in text) is not is_complete
    assert ("begins after the run did" in " ".join(fits.split())) is not is_complete


def test_run_that_began_with_more_memory_than_the_gpu_has_does_not_fit(write: Write) -> None:
    maker = training("2.11")
    alloctrace.convert(path := write({**snapshot("2.11", maker), "device_traces": []}))

    text = run_analyze(path.parent, "peak", "snapshot.alloctrace", "--fits", "701MiB", status=1)
    what_if = run_analyze(path.parent, "what-if", "snapshot.alloctrace", "--memory", "701MiB")
    fit = alloctrace.load(path.with_suffix(".alloctrace")).fit(outside=81_029 << 20)

    assert "the run does not fit: the recording began with more memory in use" in " ".join(text.split())
    assert "FAILS" in what_if and "began with more memory in use" in what_if and "fits  " not in what_if
    fits_by_gpu = {gpu.names[0]: gpu.outcome.fits for gpu in fit.fittings[0].gpus}
    assert not fits_by_gpu["A100 80GB"] and fits_by_gpu["H200"]


def test_segment_list_of_old_releases_is_converted(write: Write) -> None:
    """The snapshot is a list of segments; blocks have no address, and their stacks are in the block's `history`."""
    segment = training("1.13").segment
    for block in segment["blocks"]:
        del block["address"], block["requested_size"]
        stack = block.pop("frames")
        if block["state"] != "inactive":
            block["history"] = [{"addr": 0, "real_size": block["size"] - 500, "frames": stack}]
    for name in ("requested_size", "segment_pool_id", "is_expandable"):
        del segment[name]
    trace = convert_and_load(write([segment]))
    assert trace.verify().ok
    assert trace.live()["line"].tolist() == [11, *[13] * 5]
    assert trace.live()["requested_bytes"].iloc[0] == 4 * MIB - 500


def test_convert_reports_skipped_events(write: Write) -> None:
    maker = training("2.14")
    maker.add_entry("annotate")
    path = write(snapshot("2.14", maker))
    conversion = alloctrace.convert(path)
    assert conversion.skipped == {"annotate": 1, "pinned host memory": 3}
    text = run_analyze(path.parent, "convert", "snapshot.pickle", "-o", "again.alloctrace")
    assert "Left out: 1 event of annotate" in text and "Left out: 3 events of pinned host memory" in text


def test_profiler_steps_become_steps_and_marks(write: Write) -> None:
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
    trace = convert_and_load(write(data))
    assert trace.steps()["step"].tolist() == [0, 1, 2, 3]
    assert trace.marks()["name"].tolist() == [f"ProfilerStep#{number}" for number in range(4)]


def test_user_metadata_becomes_regions(write: Write) -> None:
    maker = training("2.11")
    for entry in maker.history[2:7]:
        entry["user_metadata"] = "encoder"
    maker.history[4]["user_metadata"] = ""  # of autograd's thread
    for entry in maker.history[7:9]:
        entry["user_metadata"] = "decoder"
    maker.history[-1]["user_metadata"] = "loss"

    trace = convert_and_load(write(snapshot("2.11", maker)))

    marks = trace.marks()
    assert marks["name"].tolist() == ["encoder", "encoder", "decoder", "loss"] and set(marks["kind"]) == {"region"}
    events = trace.events(kinds=["alloc", "free_requested", "free_completed", "segment_alloc", "oom"])
    inside = [events["seq"].between(region.begin_seq, region.end_seq).sum() for region in marks.itertuples()]
    assert inside == [2, 2, 2, 1]
    assert trace.verify().ok


def test_forward_frames_replace_missing_backward_frames(write: Write) -> None:
    maker = DeviceHistory("2.13")
    maker.allocate(MIB + 512, 17)
    entry = maker.history[-1]
    entry["forward_frames"] = entry["frames"]
    entry["frames"] = []

    assert convert_and_load(write(snapshot("2.13", maker))).usage()["line"].tolist() == [17]


def test_paused_history_is_converted_with_faults(write: Write) -> None:
    """A pause lost the free of one block and the allocation of another."""
    maker = training("2.11")
    del maker.history[5]
    del maker.history[-5:-3]

    conversion = alloctrace.convert(write(snapshot("2.11", maker)))
    assert conversion.faults > 0
    verified = alloctrace.load(conversion.trace).verify()
    assert verified.contradictions or verified.differences


def test_snapshot_dictionary_is_converted_only_with_a_trace_path(tmp_path: Path) -> None:
    conversion = alloctrace.convert(snapshot("2.11", training("2.11")), tmp_path / "t.alloctrace")
    assert alloctrace.load(conversion.trace).verify().ok
    with pytest.raises(alloctrace.TraceError, match="pass a path"):
        alloctrace.convert(snapshot("2.11", training("2.11")))


def test_existing_trace_is_replaced_only_with_overwrite(write: Write) -> None:
    path = write(snapshot("2.11", training("2.11")))
    trace_path = path.with_suffix(".alloctrace")
    trace_path.write_text("mine")
    with pytest.raises(alloctrace.TraceError, match="exists already"):
        alloctrace.convert(path)
    assert trace_path.read_text() == "mine"
    assert [file.name for file in sorted(path.parent.iterdir())] == ["snapshot.alloctrace", "snapshot.pickle"]
    assert alloctrace.load(alloctrace.convert(path, overwrite=True).trace).verify().ok
    with pytest.raises(alloctrace.TraceError, match="is the snapshot itself"):
        alloctrace.convert(path, path, overwrite=True)


@pytest.mark.parametrize(
    ("data", "message"),
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
def test_invalid_snapshot_is_refused(write: Write, data: Any, message: str) -> None:
    path = write(data)
    with pytest.raises(alloctrace.TraceError, match=message):
        alloctrace.convert(path)
    assert [file.name for file in path.parent.iterdir()] == ["snapshot.pickle"]


def test_convert_command_prints_json_and_refuses_bad_input(write: Write, tmp_path: Path) -> None:
    write(snapshot("2.11", training("2.11"), last=20))
    data = json.loads(run_analyze(tmp_path, "convert", "snapshot.pickle", "--json"))
    devices = ["cuda:0"]
    details = {"devices": devices, "mid_run": devices, "frames": True, "faults": 0, "skipped": {}}
    assert data.pop("format") == "pytorch_alloctrace.convert" and data.pop("format_version") == 1
    assert data == {"trace": "snapshot.alloctrace", "events": 20, **details}
    for arguments, message in (
        (["convert", "nothing.pickle"], "No such file"),
        (["convert", "snapshot.alloctrace"], "is a trace already"),
        (["convert", "."], "is not a file"),
        (["convert", "snapshot.pickle"], "exists already: give another path with -o, or --overwrite"),
        (["snapshot.pickle"], "alloctrace convert"),
    ):
        assert message in run_analyze(tmp_path, *arguments, status=2)


def test_negative_addresses_are_converted(write: Write) -> None:
    """Some releases write addresses as signed numbers."""
    maker = training("2.11")
    data = snapshot("2.11", maker)
    shift = 2**64 - 2**48 - BASE
    for row in [*data["segments"], *data["segments"][0]["blocks"]]:
        row["address"] += shift - 2**64
    for entry in maker.history:
        if "addr" in entry:
            entry["addr"] += shift - 2**64
    trace = convert_and_load(write(data))
    assert trace.verify().ok
    assert int(trace.segments()["address"].iloc[0]) == -(2**48)


def test_line_table_follows_the_order_of_execution() -> None:
    function = Function("train", "train.py")
    no_call, read = ("", ""), ("read", "data.py")
    previous = None
    for line in (12, 13, 11, 12, 13, 30, 11, 12):  # a call over three lines in a loop; line 30 in one iteration
        function.insert_call((line, no_call), previous)
        previous = (line, no_call)
    assert [line for line, _ in function.calls] == [12, 13, 30, 11]
    function.insert_call((20, no_call), None)
    assert [line for line, _ in function.calls] == [12, 13, 20, 30, 11]
    function.insert_call((13, read), None)
    assert function.calls[1:3] == [(13, no_call), (13, read)]
    assert line_table([5, 5, 5 + 300, 7]) == bytes([2, 0, 2, 0, 0, 127, 0, 127, 2, 46, 0, 0x81, 0, 0x81, 2, 0x100 - 44])


def test_loop_of_one_line_that_calls_two_functions_is_found(write: Write) -> None:
    """Each iteration counts once, though the line itself allocates, and so do both functions."""
    maker = DeviceHistory("2.15")
    for _ in range(25):
        for stack in (
            [("main", 9)],
            [("load", 3), ("main", 9)],
            [("step", 5), ("main", 9)],
            [("step", 6), ("main", 9)],
        ):
            address = maker.allocate(3 * MIB, 0)
            maker.history[-1]["frames"] = [{"name": name, "filename": "train.py", "line": line} for name, line in stack]
            maker.free(address)

    trace = convert_and_load(write(snapshot("2.15", maker)))

    [loop] = trace._recorded.replay.loops
    assert loop.rounds == 24 and trace.frames(loop.function)[0].function == "main"
