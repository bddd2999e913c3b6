"""Timeline of a range: the intervals that the range touches, with their minima and maxima."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pandas as pd
import pytest
from marked_programs import run_analyze
from shared_recordings import run_source
from steady_clock import make_steady

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.reading.timeline import in_range

SPANS = 20
# Ticks are evenly spaced: span n is interval n of a timeline of SPANS points. Each span frees the blocks of the span
# before, so each interval falls to the permanent 1 MiB. The CPU peaks in span 4, the GPU higher in span 12.
PROGRAM = f"""
import torch, pytorch_alloctrace as alloctrace

MIB = 2**20
with alloctrace.enable("run.alloctrace"):
    kept = [torch.empty(MIB, dtype=torch.uint8, device=device) for device in ("cpu", "cuda")]
    for span in range({SPANS}):
        host = torch.empty((50 if span == 4 else 10) * MIB, dtype=torch.uint8)
        block = torch.empty((80 if span == 12 else 5) * MIB, dtype=torch.uint8, device="cuda")
        alloctrace.mark(f"in {{span}}")
        del host, block
        if span < {SPANS} - 1:
            alloctrace.mark("tick")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = run_source(tmp_path_factory.mktemp("timeline_ranges"), PROGRAM, cuda=True)
    assert make_steady(folder / "run.alloctrace") == SPANS - 1
    return folder


@pytest.fixture(scope="module")
def trace(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


def run_timeline(folder: Path, *arguments: str, points: int = SPANS, device: str = "cpu") -> pd.DataFrame:
    """Return the intervals that the command line prints for a range."""
    command = ("timeline", "run.alloctrace", "--points", str(points), "--device", device, *arguments, "--json")
    return pd.DataFrame(json.loads(run_analyze(folder, *command))["rows"])


def run_spans(folder: Path, *arguments: str, device: str = "cpu") -> list[int]:
    """Return the numbers of the intervals that the command line prints for a range."""
    begins = list(run_timeline(folder, device=device)["time_ns"])
    return [begins.index(begin) for begin in run_timeline(folder, *arguments, device=device)["time_ns"]]


def test_timeline_of_range_has_touched_intervals_and_extremes(folder: Path, trace: alloctrace.Trace) -> None:
    assert run_spans(folder, "--since", "mark:in 5", "--until", "mark:in 7") == [5, 6, 7]
    # The first interval includes its peak.
    assert run_timeline(folder, "--since", "mark:in 4", "--until", "mark:in 6")["allocated_bytes_max"].max() >= 50 << 20

    within_one = run_timeline(folder, "--since", "mark:in 5", "--until", "mark:in 7", points=1)
    assert within_one["allocated_bytes_max"].tolist() == [trace.peak(device="cpu").bytes]
    # Each device has its own peak.
    assert run_spans(folder, "--since", "peak", device="cpu") == [*range(4, SPANS)]
    assert run_spans(folder, "--until", "peak", device="cuda:0") == [*range(13)]

    # Each interval has a maximum of 11 MiB and a minimum of 1 MiB.
    command = ("timeline", "run.alloctrace", "--points", str(SPANS), "--device", "cpu")
    text = run_analyze(folder, *command, "--since", "mark:in 14", "--until", "mark:in 16")
    [line] = [line for line in text.splitlines() if line.strip().startswith("allocated")]
    assert line.split()[-6:] == ["1.00", "MiB", "11.0", "MiB", "1.00", "MiB"]


@pytest.mark.parametrize("points", [3, 400])
def test_first_and_last_interval_contain_ends_of_range(trace: alloctrace.Trace, points: int) -> None:
    """No interval between the two is missing, and none outside is included."""
    table = trace.timeline(points, device="cpu")
    begins = [*table["time_ns"], 1 << 63]
    times = dict(zip(trace.events()["seq"], trace.events()["time_ns"], strict=True))

    random_ranges = random.Random(points)

    for _ in range(100):
        since, until = sorted(random_ranges.sample(range(1, trace.integrity.events), 2))
        bounds = trace._recorded.time_ns(since), trace._recorded.time_ns(until)
        intervals = list(table["time_ns"][in_range(table, *bounds)])
        first, last = begins.index(intervals[0]), begins.index(intervals[-1])
        assert intervals == begins[first : last + 1]
        assert begins[first] <= times[since] < begins[first + 1], (since, until)
        assert begins[last] <= times[until] < begins[last + 1], (since, until)
