"""What the analyses say of a converted snapshot is what they say of our own recording of the same run."""

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
    done = alloctrace.convert(folder / "snapshot.pickle")
    assert done.frames and not done.faults and not done.mid_run and not done.skipped
    assert done.devices == ("cuda:0",)
    return Pair(alloctrace.load(folder / "run.alloctrace"), alloctrace.load(done.trace))


def test_converted_trace_agrees_with_itself_and_tells_the_users_files_apart(pair: Pair) -> None:
    verified = pair.converted.verify()
    assert verified.ok
    assert (verified.states, verified.agreeing) == (1, 1)
    assert pair.converted.integrity.end_reason == "converted"
    usage = pair.converted.usage()
    users = usage[usage["user"]]
    assert set(users["filename"]) == {str(PROGRAM)}
    assert Path(pair.converted.header["program"]) == PROGRAM


def test_first_finding_and_leaks_are_the_same(pair: Pair) -> None:
    """Except for units and forecasts: torch's history has neither the ends of steps nor the size of the device."""
    ours, theirs = next(iter(pair.recorded.diagnose())), next(iter(pair.converted.diagnose()))
    assert (theirs.kind, theirs.bytes, theirs.device) == (ours.kind, ours.bytes, ours.device)
    our_line, their_line = (one.site and (one.site.filename, one.site.line) for one in (ours, theirs))
    assert their_line == our_line

    columns = ["device", "filename", "line", "function", "leak_kind", "confidence", "blocks"]
    columns += ["allocated_bytes", "allocated_bytes_at_end"]
    ours, theirs = (trace.leaks().to_frame() for trace in pair)
    pd.testing.assert_frame_equal(theirs[columns], ours[columns], rtol=1e-6)
    if len(ours) and ours["unit"][0] == "step":
        assert theirs["unit"].tolist() == ["iteration"]  # loops stand for steps
        assert theirs["bytes_per_unit"].tolist() == pytest.approx(ours["bytes_per_unit"].tolist(), rel=0.02)
        assert theirs["line"].tolist() == [line_with("# THE LEAK", PROGRAM.read_text())]


def test_refused_requests_are_the_same(pair: Pair) -> None:
    ours, theirs = pair.recorded.ooms(), pair.converted.ooms()
    assert len(theirs) == len(ours)
    for one, other in zip(ours, theirs, strict=True):
        for name in ("requested", "device_free", "largest_free", "segment", "reserved", "allocated"):
            assert getattr(other, f"{name}_bytes") == getattr(one, f"{name}_bytes"), name
        assert other.is_limited == one.is_limited
        assert other.site.line == one.site.line


def test_the_memory_is_the_same(pair: Pair) -> None:
    for measure in ("allocated", "reserved"):
        assert pair.converted.peak(measure).bytes == pair.recorded.peak(measure).bytes
    columns = ["address", "total_bytes", "allocated_bytes", "active_bytes", "requested_bytes", "segment_type"]
    ours, theirs = (trace.segments("peak").sort_values("address", ignore_index=True) for trace in pair)
    pd.testing.assert_frame_equal(theirs[columns], ours[columns])


def test_what_the_user_allocated_has_the_same_lines(pair: Pair) -> None:
    """Not what backward allocated, nor workspaces of cuBLAS: torch only says where Python was when they were made."""
    ours, theirs = (trace.usage("peak", device="cuda:0").set_index(["filename", "line"]) for trace in pair)
    forward_bytes = ours["live_bytes"] - ours["live_backward_bytes"]
    named = [key for key in forward_bytes.index if key[0] == str(PROGRAM) and forward_bytes[key] > 0]
    assert named
    workspace = 64 * 2**20
    for key in named:
        assert 0 <= theirs["live_bytes"][key] - forward_bytes[key] <= workspace, key
