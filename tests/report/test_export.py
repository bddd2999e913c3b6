"""Exports to formats of other tools: bytes match the Python API, and torch's own tool reads the pickle."""

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
from frees import split_frees
from marked_programs import run_analyze
from running import ROOT, run_python
from shared_recordings import record_once, record_report, run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.report.export.formats import FORMATS


@pytest.fixture(scope="module")
def trace() -> alloctrace.Trace:
    return alloctrace.load(record_once("report", record_report) / "run.alloctrace")


def export_trace(trace: alloctrace.Trace, to: str, tmp_path: Path, **settings: Any) -> Any:
    written = trace.export(tmp_path / "exported", to, **settings)
    if to == "memory-viz":
        return pickle.loads(written.read_bytes())
    return json.loads(written.read_bytes()) if to != "collapsed" else written.read_text()


def test_speedscope_contains_live_bytes_of_each_device(trace: alloctrace.Trace, tmp_path: Path) -> None:
    data = export_trace(trace, "speedscope", tmp_path, at="peak")
    frames = data["shared"]["frames"]

    assert [profile["name"] for profile in data["profiles"]] == [f"{device}: live at peak" for device in trace.devices]
    for profile in data["profiles"]:
        device = profile["name"].split(": ")[0]
        # Each device has its own peak.
        live = trace.live("peak", device=device)
        assert profile["type"] == "sampled" and profile["unit"] == "bytes" and profile["startValue"] == 0
        assert sum(profile["weights"]) == profile["endValue"] == live["requested_bytes"].sum()
        assert len(profile["samples"]) == len(profile["weights"])
        for sample in profile["samples"]:
            stack = [frames[index] for index in sample]
            assert stack[0]["name"] == "<module>" and all(frame["line"] > 0 for frame in stack)


def test_collapsed_contains_live_or_allocated_bytes_by_stack(trace: alloctrace.Trace, tmp_path: Path) -> None:
    text = export_trace(trace, "collapsed", tmp_path, at="step:10")
    bytes_by_device: dict[str, int] = {}
    for line in text.splitlines():
        parsed = re.fullmatch(r"(cuda:\d);(.*) (\d+)", line)
        bytes_by_device[parsed[1]] = bytes_by_device.get(parsed[1], 0) + int(parsed[3])
    # The end of a step frees the blocks held by the frame of its function.
    assert bytes_by_device == {"cuda:0": trace.live("step:10", device="cuda:0")["requested_bytes"].sum()}
    assert any("train (" in line and "main (" in line.split("train (")[0] for line in text.splitlines())

    text = export_trace(trace, "collapsed", tmp_path, since="step:4", until="step:14", device="cuda:0")
    events = trace.events(since="step:4", until="step:14", kinds=["alloc"])
    allocated = events.loc[events["device"] == "cuda:0", "requested_bytes"].sum()
    assert sum(int(line.rpartition(" ")[2]) for line in text.splitlines()) == allocated > 0


def test_memory_of_backward_is_a_frame_of_its_own(tmp_path: Path) -> None:
    source = (
        "import torch, pytorch_alloctrace\npytorch_alloctrace.enable('run.alloctrace')\n"
        "weight = torch.zeros(250_000, device='cuda', requires_grad=True)\nweight.sqrt().sum().backward()\n"
    )
    trace = alloctrace.load(run_source(tmp_path, source, cuda=True) / "run.alloctrace")

    lines = export_trace(trace, "collapsed", tmp_path, device="cuda:0").splitlines()

    of_backward = [line for line in lines if ";(backward) " in line]
    live = trace.live("peak", device="cuda:0")
    assert all(re.search(r":4\);\(backward\) \d+$", line) for line in of_backward)
    backward_bytes = sum(int(line.rpartition(" ")[2]) for line in of_backward)
    assert backward_bytes == live.loc[live["backward"], "requested_bytes"].sum() >= 1_000_000
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == live["requested_bytes"].sum()


def test_torch_reads_exported_pickle(trace: alloctrace.Trace, tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    before_failure = next(iter(trace._recorded.failed_allocations)) - 1
    data = export_trace(trace, "memory-viz", tmp_path, at=before_failure)
    segments = trace.segments(before_failure)
    assert len(data["segments"]) == len(segments) > 10
    for exported, row in zip(data["segments"], segments.to_dict("records"), strict=True):
        assert f"cuda:{exported['device']}" == row["device"]
        names = ("total", "allocated", "active", "requested")
        assert [exported[f"{name}_size"] for name in names] == [row[f"{name}_bytes"] for name in names]
        for name in ("address", "stream", "segment_type", "segment_pool_id", "is_expandable"):
            assert exported[name] == row[name]
        assert sum(block["size"] for block in exported["blocks"]) == exported["total_size"]
    names = ("address", "size", "requested_size", "state")
    blocks = [tuple(block[name] for name in names) for segment in data["segments"] for block in segment["blocks"]]
    columns = ["address", "block_bytes", "requested_bytes", "state"]
    assert sorted(blocks) == sorted(trace.blocks(before_failure)[columns].itertuples(index=False, name=None))
    assert "total_reserved" in _memory_viz.segsum(data)
    for draw in (_memory_viz.segment_plot, _memory_viz.trace_plot):
        assert "<script" in draw(data)
    assert "cudaMalloc" in _memory_viz.trace(data)


def test_pickle_contains_events_of_range(trace: alloctrace.Trace, tmp_path: Path) -> None:
    data = export_trace(trace, "memory-viz", tmp_path, since="step:4", until="step:14")
    kinds = ["alloc", "free_requested", "free_completed"]
    columns = ("seq", "kind", "device", "address", "requested_bytes", "node_seq")
    events = split_frees(trace.events(since="step:4", until="step:14", kinds=kinds, columns=columns))
    for index, exported in enumerate(data["device_traces"]):
        rows = events[events["device"] == f"cuda:{index}"]
        own = [entry for entry in exported if entry["action"] in kinds]
        assert [entry["action"] for entry in own] == [*rows["kind"]]
        assert [entry["size"] for entry in own] == [*rows["requested_bytes"]]
        assert all(entry["frames"] for entry in own if entry["action"] == "alloc")

    complete = export_trace(trace, "memory-viz", tmp_path)
    (failure,) = [entry for entry in complete["device_traces"][0] if entry["action"] == "oom"]
    oom = trace.ooms()[0]
    assert failure["device_free"] == oom.device_free_bytes and failure["size"] == oom.requested_bytes


def test_perfetto_contains_peaks_steps_and_marks_and_is_valid(trace: alloctrace.Trace, tmp_path: Path) -> None:
    """Check the rules of the published "Trace Event Format" (fields and types of each phase) and that no counter goes
    back in time, since Perfetto's trace processor is not available here."""
    data = export_trace(trace, "perfetto", tmp_path)
    events = data["traceEvents"]
    for device in trace.devices:
        for measure in ("allocated", "reserved"):
            counter = [item for item in events if item["name"] == f"{device} {measure}" and item["ph"] == "C"]
            values = [item["args"]["bytes"] for item in counter]
            assert max(values) == trace.peak(measure, device=device).bytes
            assert values[-1] == trace.timeline(6000, device=device)[f"{measure}_bytes"].iloc[-1]
    assert sum(item["ph"] == "X" and item["name"].startswith("step ") for item in events) == len(trace.steps())
    assert {"validation", "out of memory on cuda:0"} <= {item["name"] for item in events}
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

    events = export_trace(trace, "perfetto", tmp_path, since="step:4", until="step:14")["traceEvents"]
    begin, end = ((trace._recorded.time_ns(at) - trace.begin_ns) / 1000 for at in ("step:4", "step:14"))
    assert {item["name"] for item in events if item["ph"] == "X"} >= {"step 5", "step 14"}
    assert all(item["ts"] + item.get("dur", 0) >= begin and item["ts"] <= end for item in events if item["ph"] != "M")


def test_pandas_reads_exported_events(trace: alloctrace.Trace, tmp_path: Path) -> None:
    path = trace.export(tmp_path / "events.parquet", "parquet", since="step:4", until="step:14", device="cuda:0")
    exported = pd.read_parquet(path)
    events = trace.events(since="step:4", until="step:14")
    events = events[events["device"] == "cuda:0"]
    assert len(exported) == len(events) > 50
    for name in events.columns.drop("pool"):
        assert [*exported[name]] == [*events[name]], name
    assert set(exported["pool"]) == {"0,0"}

    large = exported[(exported["kind"] == "alloc") & (exported["requested_bytes"] == 1 << 20)]
    assert set(large["function"]) == {"train"} and large["filename"].str.endswith("report_program.py").all()


def test_parquet_raises_missing_package_error_without_pyarrow(
    trace: alloctrace.Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(alloctrace.MissingPackageError, match="pip install pyarrow"):
        trace.export(tmp_path / "events.parquet", "parquet")
    assert not [*tmp_path.iterdir()]


def test_export_command_writes_next_to_trace_and_prints_file_name(trace: alloctrace.Trace, tmp_path: Path) -> None:
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


def test_schema_and_export_page_list_all_formats() -> None:
    schema = json.loads((ROOT / "docs/json-schema.json").read_text())
    section = (ROOT / "docs/export.md").read_text().partition("## Convert")[0]
    table = re.findall(r"^\| `(\w[\w-]*)` \|", section, re.MULTILINE)

    assert schema["$defs"]["export"]["properties"]["to"]["enum"] == table == [*FORMATS]


def test_stacks_are_exported_at_the_peak_without_frames_of_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import torch\nblock = torch.zeros(100_000)\ndel block\n")
    command = [
        sys.executable,
        "-m",
        "pytorch_alloctrace",
        "run",
        "--devices",
        "cpu",
        "-o",
        "t.alloctrace",
        "program.py",
    ]
    run_python(tmp_path, command, True, 600, {})
    trace = alloctrace.load(tmp_path / "t.alloctrace")

    lines = trace.export(tmp_path / "t.txt", to="collapsed").read_text().splitlines()

    (line,) = [line for line in lines if line.endswith(" 400000")]
    assert line.startswith("cpu;<module> (") and "program.py:2)" in line and "recording" not in line
    speedscope = export_trace(trace, "speedscope", tmp_path)
    assert [profile["name"] for profile in speedscope["profiles"]] == ["cpu: live at peak"]
    assert speedscope["profiles"][0]["endValue"] == trace.live("peak")["requested_bytes"].sum() >= 400_000
    assert {frame["file"] for frame in speedscope["shared"]["frames"]} == {str(tmp_path / "program.py")}
    with pytest.raises(alloctrace.TraceError, match="CUDA devices only"):
        trace.export(tmp_path / "t.pickle", to="memory-viz")
    run_analyze(tmp_path, "export", "t.alloctrace", "--to", "memory-viz", "-o", "t.pickle", status=2)
    assert not (tmp_path / "t.pickle").exists()
