"""A trace in the formats of other tools: bytes are those of the Python API, and torch's own tool reads its pickle."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frees import in_two
from marked_programs import run_analyze
from shared_recordings import record_once, record_report

import pytorch_alloctrace as alloctrace


@pytest.fixture(scope="module")
def trace() -> alloctrace.Trace:
    return alloctrace.load(record_once("report", record_report) / "run.alloctrace")


def exported(trace: alloctrace.Trace, to: str, tmp_path: Path, **settings: Any) -> Any:
    written = trace.export(tmp_path / "exported", to, **settings)
    if to == "memory-viz":
        return pickle.loads(written.read_bytes())
    return json.loads(written.read_bytes()) if to != "collapsed" else written.read_text()


def test_speedscope_has_what_is_live(trace: alloctrace.Trace, tmp_path: Path) -> None:
    data = exported(trace, "speedscope", tmp_path, at="peak")
    frames = data["shared"]["frames"]
    assert [profile["name"] for profile in data["profiles"]] == [f"{one}: live at peak" for one in trace.devices]
    for profile in data["profiles"]:
        device = profile["name"].split(": ")[0]
        # The peak is that of one device.
        live = trace.live("peak", device=device)
        assert profile["type"] == "sampled" and profile["unit"] == "bytes" and profile["startValue"] == 0
        assert sum(profile["weights"]) == profile["endValue"] == live["requested_bytes"].sum()
        assert len(profile["samples"]) == len(profile["weights"])
        for sample in profile["samples"]:
            stack = [frames[index] for index in sample]
            assert stack[0]["name"] == "<module>" and all(frame["line"] > 0 for frame in stack)


def test_collapsed_has_a_stack_a_line_with_what_it_holds_or_allocated_in_a_range(
    trace: alloctrace.Trace, tmp_path: Path
) -> None:
    text = exported(trace, "collapsed", tmp_path, at="step:10")
    found: dict[str, int] = {}
    for line in text.splitlines():
        parsed = re.fullmatch(r"(cuda:\d);(.*) (\d+)", line)
        found[parsed[1]] = found.get(parsed[1], 0) + int(parsed[3])
    # The end of a step frees what the frame of its function held.
    assert found == {"cuda:0": trace.live("step:10", device="cuda:0")["requested_bytes"].sum()}
    assert any("train (" in line and "main (" in line.split("train (")[0] for line in text.splitlines())

    text = exported(trace, "collapsed", tmp_path, since="step:4", until="step:14", device="cuda:0")
    events = trace.events(since="step:4", until="step:14", kinds=["alloc"])
    allocated = events.loc[events["device"] == "cuda:0", "requested_bytes"].sum()
    assert sum(int(line.rpartition(" ")[2]) for line in text.splitlines()) == allocated > 0


def test_torch_reads_its_pickle(trace: alloctrace.Trace, tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    refused = next(iter(trace._recorded.failed_allocations)) - 1
    data = exported(trace, "memory-viz", tmp_path, at=refused)
    segments = trace.segments(refused)
    assert len(data["segments"]) == len(segments) > 10
    for made, row in zip(data["segments"], segments.to_dict("records"), strict=True):
        assert f"cuda:{made['device']}" == row["device"]
        assert (made["total_size"], made["allocated_size"], made["active_size"], made["requested_size"]) == (
            *(row["total_bytes"], row["allocated_bytes"], row["active_bytes"], row["requested_bytes"]),
        )
        for name in ("address", "stream", "segment_type", "segment_pool_id", "is_expandable"):
            assert made[name] == row[name]
        assert sum(block["size"] for block in made["blocks"]) == made["total_size"]
    names = ("address", "size", "requested_size", "state")
    blocks = [tuple(block[name] for name in names) for segment in data["segments"] for block in segment["blocks"]]
    columns = ["address", "block_bytes", "requested_bytes", "state"]
    assert sorted(blocks) == sorted(trace.blocks(refused)[columns].itertuples(index=False, name=None))
    assert "total_reserved" in _memory_viz.segsum(data)
    for draw in (_memory_viz.segment_plot, _memory_viz.trace_plot):
        assert "<script" in draw(data)
    assert "cudaMalloc" in _memory_viz.trace(data)


def test_the_events_of_the_pickle_are_those_of_the_range(trace: alloctrace.Trace, tmp_path: Path) -> None:
    data = exported(trace, "memory-viz", tmp_path, since="step:4", until="step:14")
    kinds = ["alloc", "free_requested", "free_completed"]
    columns = ("seq", "kind", "device", "address", "requested_bytes", "node_seq")
    events = in_two(trace.events(since="step:4", until="step:14", kinds=kinds, columns=columns))
    for index, made in enumerate(data["device_traces"]):
        rows = events[events["device"] == f"cuda:{index}"]
        own = [one for one in made if one["action"] in kinds]
        assert [one["action"] for one in own] == [*rows["kind"]]
        assert [one["size"] for one in own] == [*rows["requested_bytes"]]
        assert all(one["frames"] for one in own if one["action"] == "alloc")
    whole = exported(trace, "memory-viz", tmp_path)
    (refused,) = [one for one in whole["device_traces"][0] if one["action"] == "oom"]
    assert (
        refused["device_free"] == trace.ooms()[0].device_free_bytes
        and refused["size"] == trace.ooms()[0].requested_bytes
    )


def test_perfetto_has_the_peaks_steps_and_marks_and_keeps_the_rules_of_its_json(
    trace: alloctrace.Trace, tmp_path: Path
) -> None:
    """The rules are those that Perfetto and chrome://tracing publish ("Trace Event Format"): what each phase must have,
    and of which type; and no counter goes back in time. Its trace processor is a program that cannot be had here."""
    data = exported(trace, "perfetto", tmp_path)
    events = data["traceEvents"]
    for device in trace.devices:
        for measure in ("allocated", "reserved"):
            counter = [one for one in events if one["name"] == f"{device} {measure}" and one["ph"] == "C"]
            values = [one["args"]["bytes"] for one in counter]
            assert max(values) == trace.peak(measure, device=device).bytes
            assert values[-1] == trace.timeline(6000, device=device)[f"{measure}_bytes"].iloc[-1]
    assert sum(one["ph"] == "X" and one["name"].startswith("step ") for one in events) == len(trace.steps())
    assert {"validation", "out of memory on cuda:0"} <= {one["name"] for one in events}
    assert data["displayTimeUnit"] in ("ms", "ns")
    latest: dict[str, float] = {}
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert event["ph"] in "MCXi"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            continue
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, (int, float)) for value in event["args"].values())
            assert event["ts"] >= latest.get(event["name"], 0)
            latest[event["name"]] = event["ts"]
        if event["ph"] == "X":
            assert isinstance(event["tid"], int) and event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
    assert latest["cuda:0 allocated"] <= (trace.end_ns - trace.begin_ns) / 1000

    events = exported(trace, "perfetto", tmp_path, since="step:4", until="step:14")["traceEvents"]
    begin, end = ((trace._recorded.time_ns(at) - trace.begin_ns) / 1000 for at in ("step:4", "step:14"))
    assert {one["name"] for one in events if one["ph"] == "X"} >= {"step 5", "step 14"}
    assert all(one["ts"] + one.get("dur", 0) >= begin and one["ts"] <= end for one in events if one["ph"] != "M")


def test_pandas_reads_the_events(trace: alloctrace.Trace, tmp_path: Path) -> None:
    path = trace.export(tmp_path / "events.parquet", "parquet", since="step:4", until="step:14", device="cuda:0")
    found = pd.read_parquet(path)
    events = trace.events(since="step:4", until="step:14")
    events = events[events["device"] == "cuda:0"]
    assert len(found) == len(events) > 50
    for name in events.columns.drop("pool"):
        assert [*found[name]] == [*events[name]], name
    assert set(found["pool"]) == {"0,0"}
    kept = found[(found["kind"] == "alloc") & (found["requested_bytes"] == 1 << 20)]
    assert set(kept["function"]) == {"train"} and kept["filename"].str.endswith("report_program.py").all()


def test_without_pyarrow_it_says_what_to_install(
    trace: alloctrace.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(alloctrace.MissingPackageError, match="pip install pyarrow"):
        trace.export(tmp_path / "events.parquet", "parquet")
    assert not [*tmp_path.iterdir()]


def test_export_writes_next_to_the_trace_and_names_the_file(trace: alloctrace.Trace, tmp_path: Path) -> None:
    shutil.copy(trace.path, tmp_path)
    out = run_analyze(tmp_path, "export", "run.alloctrace", "--to", "speedscope", "--in", "validation")
    assert out.startswith("run.speedscope.json: ") and (tmp_path / "run.speedscope.json").exists()
    for arguments, error in (
        (["perfetto", "--at", "peak"], "takes --since and --until"),
        (["speedscope", "--at", "peak", "--since", "step:1"], "--at is one position"),
        (["collapsed", "-o", "no/such/file"], "no/such is not a folder"),
        (["speedscope"], "exists already: give another path with -o, or --overwrite"),
    ):
        assert error in run_analyze(tmp_path, "export", "run.alloctrace", "--to", *arguments, status=2)
    with pytest.raises(ValueError, match="use one of speedscope, collapsed"):
        trace.export(tmp_path / "x", "svg")
