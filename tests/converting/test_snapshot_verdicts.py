"""Analyses of a converted snapshot, compared with those of a recording of the same run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from marked_programs import line_with
from running import ROOT, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace

pytestmark = needs_cuda_build
PROGRAM = ROOT / "tests/support/snapshot_pairs.py"


class Pair(NamedTuple):
    recorded: alloctrace.Trace
    converted: alloctrace.Trace


@pytest.fixture(scope="module", params=["leak", "healthy", "out_of_memory"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("pair")
    run_python(folder, with_cuda([sys.executable, str(PROGRAM), request.param], memory="2GiB"), True, 600, {})
    conversion = alloctrace.convert(folder / "snapshot.pickle")
    assert conversion.frames and not conversion.faults and not conversion.mid_run and not conversion.skipped
    assert conversion.devices == ("cuda:0",)
    return Pair(alloctrace.load(folder / "run.alloctrace"), alloctrace.load(conversion.trace))


def test_converted_trace_verifies_and_marks_user_files(pair: Pair) -> None:
    verified = pair.converted.verify()
    assert verified.ok
    assert (verified.states, verified.agreeing) == (1, 1)
    assert pair.converted.integrity.end_reason == "converted"
    usage = pair.converted.usage()
    user_rows = usage[usage["user"]]
    assert set(user_rows["filename"]) == {str(PROGRAM)}
    assert Path(pair.converted.header["program"]) == PROGRAM


def test_converted_trace_has_same_first_finding_and_leaks(pair: Pair) -> None:
    """Units and forecasts differ: torch's history has neither the ends of steps nor the size of the device."""
    recorded, converted = next(iter(pair.recorded.diagnose())), next(iter(pair.converted.diagnose()))
    assert (converted.kind, converted.bytes, converted.device) == (recorded.kind, recorded.bytes, recorded.device)
    recorded_line, converted_line = (f.site and (f.site.filename, f.site.line) for f in (recorded, converted))
    assert converted_line == recorded_line

    columns = ["device", "filename", "line", "function", "leak_kind", "confidence", "blocks"]
    columns += ["allocated_bytes", "allocated_bytes_at_end"]
    recorded, converted = (trace.leaks().to_frame() for trace in pair)
    pd.testing.assert_frame_equal(converted[columns], recorded[columns], rtol=1e-6)
    if len(recorded) and recorded["unit"][0] == "step":
        assert converted["unit"].tolist() == ["iteration"]  # loop iterations replace steps
        assert converted["bytes_per_unit"].tolist() == pytest.approx(recorded["bytes_per_unit"].tolist(), rel=0.02)
        assert converted["line"].tolist() == [line_with("# THE LEAK", PROGRAM.read_text())]
        assert converted["no_holder"].tolist() == ["converted"] and recorded["no_holder"].tolist() == [""]
        assert "Holder not found: torch's snapshots contain no references." in read_text(pair.converted)


def read_text(trace: alloctrace.Trace) -> str:
    return " ".join(" ".join((finding.title, *finding.sentences)) for finding in trace.diagnose())


def test_converted_trace_has_same_failed_allocations(pair: Pair) -> None:
    recorded, converted = pair.recorded.ooms(), pair.converted.ooms()
    assert len(converted) == len(recorded)
    for expected, oom in zip(recorded, converted, strict=True):
        for name in ("requested", "device_free", "largest_free", "segment", "reserved", "allocated"):
            assert getattr(oom, f"{name}_bytes") == getattr(expected, f"{name}_bytes"), name
        assert oom.is_limited == expected.is_limited
        assert oom.site.line == expected.site.line


def test_converted_trace_has_same_peaks_and_segments(pair: Pair) -> None:
    for measure in ("allocated", "reserved"):
        assert pair.converted.peak(measure).bytes == pair.recorded.peak(measure).bytes
    columns = ["address", "total_bytes", "allocated_bytes", "active_bytes", "requested_bytes", "segment_type"]
    recorded, converted = (trace.segments("peak").sort_values("address", ignore_index=True) for trace in pair)
    pd.testing.assert_frame_equal(converted[columns], recorded[columns])


def test_converted_trace_has_same_lines_of_forward_allocations(pair: Pair) -> None:
    """Excludes allocations of backward and cuBLAS workspaces: torch records the Python line that runs at the time."""
    recorded, converted = (trace.usage("peak", device="cuda:0").set_index(["filename", "line"]) for trace in pair)
    forward_bytes = recorded["live_bytes"] - recorded["live_backward_bytes"]
    forward_lines = [key for key in forward_bytes.index if key[0] == str(PROGRAM) and forward_bytes[key] > 0]
    assert forward_lines
    workspace = 64 * 2**20
    for key in forward_lines:
        assert 0 <= converted["live_bytes"][key] - forward_bytes[key] <= workspace, key


def test_forwards_between_backwards_are_named_though_a_snapshot_tells_no_graph(tmp_path: Path) -> None:
    run_python(tmp_path, with_cuda([sys.executable, str(PROGRAM), "previews"], memory="2GiB"), True, 600, {})
    trace = alloctrace.load(alloctrace.convert(tmp_path / "snapshot.pickle").trace)

    [failed], finding = trace.ooms(), trace.diagnose()[0]

    assert failed.cause == "many forwards before backward"
    assert finding.site is not None and finding.site.line == line_with("# THE FORWARDS", PROGRAM.read_text())
    assert " forwards, no backward ran between them, and they hold 1." in finding.title
    assert "does not tell whether gradients were enabled" in " ".join(finding.sentences)
