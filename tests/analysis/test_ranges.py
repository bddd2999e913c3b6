"""Ranges of a run: peaks, allocations of each line, failed allocations and leaks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.leaks.clock import Clocks
from pytorch_alloctrace.analysis.usage.lifetimes import LastSteps
from pytorch_alloctrace.analysis.usage.peak import peak_between
from pytorch_alloctrace.reading.positions import Range

MIB = 2**20
PROGRAM = """
import random, torch, pytorch_alloctrace as alloctrace

MIB = 2**20
chance = random.Random(4)
kept = {"cuda": [], "cpu": []}

def step(device):
    for _ in range(8):
        size = chance.choice([300, 5000, MIB, 3 * MIB + 7, 30 * MIB])
        kept[device].append(torch.empty(size, dtype=torch.uint8, device=device))
        while len(kept[device]) > 6:
            kept[device].pop(chance.randrange(7))

def refuse():
    try:
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass

with alloctrace.enable("run.alloctrace", devices=("cuda", "cpu")):
    for number in range(12):
        step("cuda")
        step("cpu")
        if number % 3 == 0:
            torch.cuda.empty_cache()
            refuse()
        alloctrace.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("range"), PROGRAM, cuda=True)


@pytest.fixture(scope="module")
def trace(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


def bytes_after(trace: alloctrace.Trace, seq: int, device: str, measure: str) -> int:
    if measure == "reserved":
        return int(trace.segments(seq, device=device)["total_bytes"].sum())
    blocks = trace.blocks(seq, device=device)
    return int(blocks.loc[blocks["state"] == "active_allocated", "block_bytes"].sum())


@pytest.mark.parametrize(("device", "measure"), [("cuda:0", "allocated"), ("cpu", "allocated"), ("cuda:0", "reserved")])
def test_peak_of_range_is_maximum_over_its_positions(trace: alloctrace.Trace, device: str, measure: str) -> None:
    events = trace.integrity.events
    chance = random.Random(device + measure)
    for length in (1, 2, 5, 20, 20, 60):
        first = chance.randrange(1, events - length)
        last = first + length
        levels = {seq: bytes_after(trace, seq, device, measure) for seq in range(first - 1, last + 1)}
        if not any(levels.values()):
            continue
        range_peak = peak_between(trace._recorded, Range(first, last + 1), measure, device=device)
        assert range_peak.bytes == max(levels.values()), (first, last)
        assert first - 1 <= range_peak.seq <= last and levels[range_peak.seq] == range_peak.bytes
        live = trace.live(range_peak.seq, device=device)
        assert range_peak.usage()["live_bytes"].sum() == range_peak.requested_bytes == live["requested_bytes"].sum()
    # Where memory only falls, the peak is at the beginning of the range.
    kind = "segment_free" if measure == "reserved" else "free_completed"
    frees = trace.events(kinds=[kind], columns=["seq", "device"])
    seq = int(frees.loc[frees["device"] == device, "seq"].iloc[-1])
    peak = peak_between(trace._recorded, Range(seq, seq + 1), measure, device=device)
    after, before = (bytes_after(trace, at, device, measure) for at in (seq, seq - 1))
    assert after < before == peak.bytes
    from_start, expected = trace.peak(measure, device=device, since=0), trace.peak(measure, device=device)
    assert (from_start.bytes, from_start.seq) == (expected.bytes, expected.seq)


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_peak_of_range_from_beginning_is_maximum_over_its_positions(trace: alloctrace.Trace, device: str) -> None:
    for step in (1, 4, 8):
        last = int(trace.steps()["seq"].iloc[step])

        peak = trace.peak(device=device, until=f"step:{step}")

        levels = [bytes_after(trace, seq, device, "allocated") for seq in range(last + 1)]
        assert peak.bytes == max(levels) == levels[peak.seq]


def test_usage_of_range_matches_its_events(trace: alloctrace.Trace) -> None:
    events = trace.events(since="step:3", until="step:7", kinds=("alloc",))
    allocs = events[events["device"] == "cuda:0"]
    table = trace.usage(device="cuda:0", since="step:3", until="step:7")
    row = table.iloc[0]
    assert (row["function"], row["allocations"], row["total_bytes"]) == ("step", 32, allocs["requested_bytes"].sum())
    assert len(allocs) == 32
    live = [int(trace.live(at, device="cuda:0")["requested_bytes"].sum()) for at in ("step:3", "step:7")]
    assert row["live_bytes_change"] == live[1] - live[0] and row["live_bytes"] == live[1]
    assert row["allocations_per_step"] == 8
    # Before some ranges a block larger than all of the range was allocated.
    largest = {}
    for number in range(11):
        allocs = trace.events(since=f"step:{number}", until=f"step:{number + 1}", kinds=("alloc",))
        in_range = trace.usage(device="cuda:0", since=f"step:{number}", until=f"step:{number + 1}").iloc[0]
        assert in_range["largest_bytes"] == allocs.loc[allocs["device"] == "cuda:0", "requested_bytes"].max()
        largest[number] = int(in_range["largest_bytes"])
    assert any(largest[later] < largest[number] for number in largest for later in largest if later > number)


def test_sites_peak_and_oom_commands_use_range(folder: Path, trace: alloctrace.Trace) -> None:
    arguments = ("run.alloctrace", "--since", "step:3", "--until", "step:7", "--device", "cuda:0")
    sites_text = " ".join(run_analyze(folder, "sites", *arguments).split())
    assert "the average of the last 4 steps" in sites_text and "ALLOCATED from step:3 to step:7" in sites_text
    assert "LIVE" not in sites_text and "GREW" not in sites_text and "holds less -86.0 MiB" in sites_text
    peak = json.loads(run_analyze(folder, "peak", *arguments, "--json"))
    expected = trace.peak(device="cuda:0", since="step:3", until="step:7")
    assert (peak["bytes"], peak["seq"], peak["since"]) == (expected.bytes, expected.seq, "step:3")
    later = json.loads(run_analyze(folder, "oom", "run.alloctrace", "--since", "step:3", "--json"))["rows"]
    assert [row["step"] for row in later] == [6, 9]
    text = run_analyze(folder, "oom", "run.alloctrace", "--until", "step:8", "--top", "2", "--json")
    earlier = json.loads(text)["rows"]
    assert [row["step"] for row in earlier] == [3, 6]
    assert "in this range" in run_analyze(folder, "oom", "run.alloctrace", "--since", "step:6", "--until", "step:8")


LEAKS_FOR_A_WHILE = """
import torch, pytorch_alloctrace as alloctrace

kept = []

def step(number):
    torch.empty(70_000)
    if 20 <= number < 45:
        kept.append(torch.empty(10_000))  # LEAK

with alloctrace.enable("for_a_while.alloctrace", devices=("cpu",)):
    for number in range(100):
        step(number)
        alloctrace.step()
with alloctrace.enable("no_steps.alloctrace", devices=("cpu",)):
    step(30)
"""


def test_leak_limited_to_some_steps_is_found_only_in_their_range(tmp_path: Path) -> None:
    run_source(tmp_path, LEAKS_FOR_A_WHILE)
    trace = alloctrace.load(tmp_path / "for_a_while.alloctrace")
    assert len(trace.leaks()) == 0
    [leak] = trace.leaks(since="step:19", until="step:44").to_frame().to_dict("records")
    assert leak["source"].endswith("# LEAK")
    assert leak["unit"] == "step" and leak["bytes_per_unit"] == 40_000 and leak["confidence"] > 0.8
    arguments = ("leaks", "for_a_while.alloctrace", "--since", "step:19", "--until", "step:44")
    run_analyze(tmp_path, *arguments, "--fail", status=1)
    # Step 20 begins right after the end of step 19; a range from its second event on does not contain it.
    recorded = trace._recorded
    begin = recorded.first_event_after("step:19") - 1
    for since, steps in ((begin, 25), (begin + 1, 24)):
        steps_range = recorded.range(since, "step:44")
        assert Clocks(recorded, "cpu").within(steps_range).length == steps - 1
        assert len(LastSteps.before(recorded, steps_range.end, steps_range.first).step_ends) == steps
    assert len(trace.leaks(since="step:44")) == len(trace.leaks(until="step:19")) == 0
    errors = run_analyze(tmp_path, "leaks", "no_steps.alloctrace", "--since", "0.0s", status=2)
    assert "but the trace has no steps" in errors.splitlines()[-1]
    errors = run_analyze(tmp_path, "leaks", "for_a_while.alloctrace", "--since", "step:99", status=2)
    assert "no whole step" in errors.splitlines()[-1]


def test_empty_or_contradictory_range_is_an_error(folder: Path) -> None:
    for arguments, message in (
        (("sites", "--since", "step:7", "--until", "step:3"), "nothing happened between step:7 and step:3"),
        (("peak", "--since", "99s"), "99s is outside the trace, which lasts"),
        (("peak", "--since", "step:3", "--at", "end"), "look for a peak"),
        (("peak", "--since", "step:3", "--at", "peak:reserved", "--device", "cpu"), "no peak of cpu"),
        (("sites", "--since", "step:3", "--at", "end"), "--at is one position"),
    ):
        assert message in run_analyze(folder, *arguments, "run.alloctrace", status=2).splitlines()[-1], arguments
