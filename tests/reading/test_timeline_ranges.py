"""A timeline of a range: the intervals that the range touches, and the lowest and highest of them."""

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
# The same time passes between two ticks: span n is interval n of a timeline of SPANS points. What is allocated in a
# span is freed in the next, so each interval falls to the 1 MiB that is always there. The CPU has its peak in span 4,
# the device a higher one in span 12.
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


def shown(folder: Path, *arguments: str, points: int = SPANS, device: str = "cpu") -> pd.DataFrame:
    """The intervals that the command line gives for a range."""
    words = ("timeline", "run.alloctrace", "--points", str(points), "--device", device, *arguments, "--json")
    return pd.DataFrame(json.loads(run_analyze(folder, *words))["rows"])


def spans(folder: Path, *arguments: str, device: str = "cpu") -> list[int]:
    """The numbers of these intervals."""
    begins = list(shown(folder, device=device)["time_ns"])
    return [begins.index(begin) for begin in shown(folder, *arguments, device=device)["time_ns"]]


def test_timeline_of_a_range_has_all_intervals_it_touches_and_their_extremes(
    folder: Path, trace: alloctrace.Trace
) -> None:
    assert spans(folder, "--since", "mark:in 5", "--until", "mark:in 7") == [5, 6, 7]
    # The interval in which the range begins has its peak.
    assert shown(folder, "--since", "mark:in 4", "--until", "mark:in 6")["allocated_bytes_max"].max() >= 50 << 20
    within_one = shown(folder, "--since", "mark:in 5", "--until", "mark:in 7", points=1)
    assert within_one["allocated_bytes_max"].tolist() == [trace.peak(device="cpu").bytes]
    # The peak is that of the device.
    assert spans(folder, "--since", "peak", device="cpu") == [*range(4, SPANS)]
    assert spans(folder, "--until", "peak", device="cuda:0") == [*range(13)]
    # Each interval has 11 MiB at its highest, and falls to 1 MiB.
    words = ("timeline", "run.alloctrace", "--points", str(SPANS), "--device", "cpu")
    text = run_analyze(folder, *words, "--since", "mark:in 14", "--until", "mark:in 16")
    [line] = [line for line in text.splitlines() if line.strip().startswith("allocated")]
    assert line.split()[-6:] == ["1.00", "MiB", "11.0", "MiB", "1.00", "MiB"]


@pytest.mark.parametrize("points", [3, 400])
def test_the_first_and_last_interval_hold_the_ends_of_the_range(trace: alloctrace.Trace, points: int) -> None:
    """Whatever the range: none is missing in between, and none is shown that it does not touch."""
    table = trace.timeline(points, device="cpu")
    begins = [*table["time_ns"], 1 << 63]
    times = dict(zip(trace.events()["seq"], trace.events()["time_ns"], strict=True))
    chance = random.Random(points)
    for _ in range(100):
        since, until = sorted(chance.sample(range(1, trace.integrity.events), 2))
        bounds = trace._recorded.time_ns(since), trace._recorded.time_ns(until)
        found = list(table["time_ns"][in_range(table, *bounds)])
        first, last = begins.index(found[0]), begins.index(found[-1])
        assert found == begins[first : last + 1]
        assert begins[first] <= times[since] < begins[first + 1], (since, until)
        assert begins[last] <= times[until] < begins[last + 1], (since, until)
