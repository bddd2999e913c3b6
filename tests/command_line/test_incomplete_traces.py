"""Incomplete traces: each command first reports what is missing, and none reports OK on what it could not judge."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from command_line import TRACE_COMMANDS, run_command
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

# Enough events for several blocks of the file: half of them can be read from the truncated trace.
PROGRAM = """
import torch, pytorch_alloctrace as alloctrace
with alloctrace.enable("complete.alloctrace", devices=("cpu",)):
    for number in range(200):
        for repetition in range(500):
            torch.ones(5_000)
        alloctrace.step()
with alloctrace.enable("empty.alloctrace", devices=("cpu",)):
    pass
with alloctrace.enable("short.alloctrace", devices=("cpu",)):
    for number in range(3):
        torch.ones(50_000)
        alloctrace.step()
"""
REQUIRED_ARGUMENTS = {"annotate": ("program.py",), "diff": ("--since", "step:10"), "export": ("--to", "speedscope")}
EXCLUDED = ("serve", "what-if", "fit")
"""`serve` runs until interrupted and has the data of `report` (tests/report). The others refuse an incomplete trace
(tests/what_if)."""
EVENT_COMMANDS = {
    name: REQUIRED_ARGUMENTS.get(name, ())
    for name, command in TRACE_COMMANDS.items()
    if command.reads_events and name not in EXCLUDED
}
"""Commands that read events, with their required arguments."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with one complete, truncated, corrupt, empty and short trace each."""
    folder = run_source(tmp_path_factory.mktemp("misread"), PROGRAM)
    complete = (folder / "complete.alloctrace").read_bytes()
    (folder / "truncated.alloctrace").write_bytes(complete[: len(complete) // 2])
    corrupt = bytearray(complete)
    corrupt[len(complete) // 2] ^= 0xFF
    (folder / "corrupt.alloctrace").write_bytes(corrupt)
    return folder


@pytest.mark.parametrize(
    ("trace", "limit", "status"),
    [
        ("complete", "1GiB", 0),
        ("complete", "1KiB", 1),
        ("truncated", "1KiB", 1),
        ("truncated", "1GiB", 3),
        ("corrupt", "1KiB", 3),
    ],
)
def test_peak_fail_above_exits_1_only_if_the_peak_is_certainly_higher(
    folder: Path, trace: str, limit: str, status: int
) -> None:
    text = run_analyze(folder, "peak", f"{trace}.alloctrace", "--fail-above", limit, status=status)

    failure = "FAIL The peak of cpu was 19.5 KiB (20,000 B) allocated: more than 1.00 KiB (--fail-above)"
    assert (failure in " ".join(text.split())) is (limit == "1KiB" and status == 1)
    assert (status == 3) is ("UNKNOWN" in text)


def test_peak_fits_exits_3_if_it_cannot_be_predicted(folder: Path) -> None:
    text = run_analyze(folder, "peak", "complete.alloctrace", "--fits", "24GB", status=3)

    assert text.startswith("Cannot predict whether the run fits")


def test_peak_fail_above_needs_the_peak_of_allocated_bytes(folder: Path) -> None:
    text = run_analyze(folder, "peak", "complete.alloctrace", "--fail-above", "1GiB", "--at", "end", status=2)

    assert "--fail-above limits the peak of allocated bytes: omit --at end" in text


@pytest.mark.parametrize("name", EVENT_COMMANDS)
def test_command_reports_incomplete_trace_first(folder: Path, name: str) -> None:
    process = run_command(folder, [name, "truncated.alloctrace", *EVENT_COMMANDS[name]])
    text = " ".join(process.stdout.split())
    begin = text.find("INCOMPLETE")
    assert begin == 0 or (name == "diagnose" and begin < 200), "The first screen begins with the program."
    assert "the break" in text or "breaks off" in text, text

    process = run_command(folder, [name, "corrupt.alloctrace", *EVENT_COMMANDS[name], "--json"])
    json.loads(process.stdout)
    text = " ".join(process.stderr.split())
    assert text.startswith("INCOMPLETE") and "Where events are missing" in text, text


def test_leaks_exits_3_when_trace_cannot_be_judged(folder: Path) -> None:
    assert "OK  No leak found on cpu" in run_analyze(folder, "leaks", "complete.alloctrace", "--fail")
    text = run_analyze(folder, "leaks", "truncated.alloctrace", "--fail", status=3)
    assert "NOTE  No leak in what could be read of cpu" in text and "OK" not in text
    assert "Nothing was allocated" in run_analyze(folder, "leaks", "empty.alloctrace", "--fail", status=3)
    assert "Too short to judge" in run_analyze(folder, "leaks", "short.alloctrace", "--fail", status=3)
    assert json.loads(run_analyze(folder, "leaks", "short.alloctrace", "--fail", "--json", status=3))["rows"] == []
    assert len(run_analyze(folder, "leaks", "complete.alloctrace", "--fail", "--csv").split()) == 1, "header row"
    # Without --fail the status reports only whether the command has an answer.
    run_analyze(folder, "leaks", "truncated.alloctrace")
    findings = json.loads(run_analyze(folder, "truncated.alloctrace", "--json"))["findings"]
    assert [finding["kind"] for finding in findings] == ["incomplete", "not_judged"]


def test_diff_exits_3_when_events_of_its_range_are_missing(folder: Path) -> None:
    limit = "--fail-above", "1MiB"
    assert "SAME" in run_analyze(folder, "diff", "complete.alloctrace", "complete.alloctrace", *limit)
    for pair in ("truncated complete", "complete truncated", "corrupt complete", "truncated truncated"):
        traces = [f"{name}.alloctrace" for name in pair.split()]
        text = run_analyze(folder, "diff", *traces, *limit, status=3)
        assert text.startswith("INCOMPLETE  ") and "UNKNOWN  Cannot tell whether a device grew" in text
    # Events before the break are exact.
    run_analyze(folder, "diff", "truncated.alloctrace", "--since", "step:10", "--until", "step:20", *limit)
    run_analyze(folder, "diff", "truncated.alloctrace", "--since", "step:10", *limit, status=3)
    run_analyze(folder, "diff", "empty.alloctrace", "empty.alloctrace", *limit, status=3)


def test_load_warns_when_trace_is_truncated(folder: Path) -> None:
    with pytest.warns(alloctrace.IncompleteTraceWarning, match="truncated: .*ends before the recording did"):
        trace = alloctrace.load(folder / "truncated.alloctrace")
    assert trace.integrity.is_truncated and not trace.integrity.is_complete and not trace.integrity.has_gaps
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert alloctrace.load(folder / "complete.alloctrace").integrity.is_complete
