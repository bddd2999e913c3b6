"""Incomplete traces: each command first reports what is missing, and gives no all-clear on what it could not judge."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from command_line import TRACE_COMMANDS, run_command
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

# Enough events for several blocks of the file: half of it can be read when it is cut.
HEALTHY = """
import torch, pytorch_alloctrace as alloctrace
with alloctrace.enable("whole.alloctrace", devices=("cpu",)):
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
NEEDED = {"annotate": ("program.py",), "diff": ("--since", "step:10"), "export": ("--to", "speedscope")}
LEFT_OUT = ("serve", "what-if", "fit")
"""`serve` does not end by itself, and shows what `report` does (tests/report). The others refuse an incomplete trace
(tests/what_if)."""
FIRST = {
    name: NEEDED.get(name, ())
    for name, command in TRACE_COMMANDS.items()
    if command.reads_events and name not in LEFT_OUT
}
"""Commands that answer from events, with the arguments that they need."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds whole.alloctrace, half of it in cut.alloctrace, one with damage in the middle, an empty and a short one."""
    made = run_source(tmp_path_factory.mktemp("misread"), HEALTHY)
    whole = (made / "whole.alloctrace").read_bytes()
    (made / "cut.alloctrace").write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    (made / "damaged.alloctrace").write_bytes(damaged)
    return made


@pytest.mark.parametrize("name", FIRST)
def test_command_says_first_that_a_part_is_missing(folder: Path, name: str) -> None:
    process = run_command(folder, [name, "cut.alloctrace", *FIRST[name]])
    text = " ".join(process.stdout.split())
    assert text.startswith("INCOMPLETE") and ("the break" in text or "breaks off" in text), text
    # Data have no room for it.
    process = run_command(folder, [name, "damaged.alloctrace", *FIRST[name], "--json"])
    json.loads(process.stdout)
    text = " ".join(process.stderr.split())
    assert text.startswith("INCOMPLETE") and "Where events are missing" in text, text


def test_leaks_that_cannot_be_judged_are_no_all_clear(folder: Path) -> None:
    assert "OK  No leak found on cpu" in run_analyze(folder, "leaks", "whole.alloctrace", "--fail")
    cut = run_analyze(folder, "leaks", "cut.alloctrace", "--fail", status=3)
    assert "NOTE  No leak in what could be read of cpu" in cut and "OK" not in cut
    assert "Nothing was allocated" in run_analyze(folder, "leaks", "empty.alloctrace", "--fail", status=3)
    assert "Too short to judge" in run_analyze(folder, "leaks", "short.alloctrace", "--fail", status=3)
    assert json.loads(run_analyze(folder, "leaks", "short.alloctrace", "--fail", "--json", status=3))["rows"] == []
    assert len(run_analyze(folder, "leaks", "whole.alloctrace", "--fail", "--csv").split()) == 1, "the names of columns"
    # Without --fail the status says whether there is an answer to read, as it does for every command.
    run_analyze(folder, "leaks", "cut.alloctrace")
    findings = json.loads(run_analyze(folder, "cut.alloctrace", "--json"))["findings"]
    assert [finding["kind"] for finding in findings] == ["incomplete", "not_judged"]


def test_a_comparison_with_a_part_missing_is_not_the_same(folder: Path) -> None:
    limit = "--fail-above", "1MiB"
    assert "SAME" in run_analyze(folder, "diff", "whole.alloctrace", "whole.alloctrace", *limit)
    for pair in (("cut", "whole"), ("whole", "cut"), ("damaged", "whole"), ("cut", "cut")):
        traces = [f"{name}.alloctrace" for name in pair]
        text = run_analyze(folder, "diff", *traces, *limit, status=3)
        assert text.startswith("INCOMPLETE  ") and "UNKNOWN  Cannot tell whether a device grew" in text
    # What comes before the break is exact.
    run_analyze(folder, "diff", "cut.alloctrace", "--since", "step:10", "--until", "step:20", *limit)
    run_analyze(folder, "diff", "cut.alloctrace", "--since", "step:10", *limit, status=3)
    run_analyze(folder, "diff", "empty.alloctrace", "empty.alloctrace", *limit, status=3)


def test_loading_warns_of_what_is_missing(folder: Path) -> None:
    with pytest.warns(alloctrace.IncompleteTraceWarning, match="truncated: .*ends before the recording did"):
        trace = alloctrace.load(folder / "cut.alloctrace")
    assert trace.integrity.is_truncated and not trace.integrity.is_complete and not trace.integrity.has_gaps
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert alloctrace.load(folder / "whole.alloctrace").integrity.is_complete
