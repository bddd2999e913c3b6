"""--all-frames: complete stacks below each row, with frames of libraries, and `frames` in JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace

PROGRAM = """
import sys, torch, pytorch_alloctrace as alloctrace

kept = []

def keep(layer):
    kept.append(layer(torch.ones(1000, 1000, device="cuda")))

def train(layer):
    for number in range(25):
        keep(layer)
        alloctrace.step()

alloctrace.enable(sys.argv[1], devices=("cuda",))
layer = torch.nn.Linear(1000, int(sys.argv[2]), device="cuda")
train(layer)
try:
    layer(torch.empty(40_000_000, 1000, device="cuda"))
except torch.OutOfMemoryError:
    pass
alloctrace.disable()
"""
COMPLETE_STACK = (
    "linear.py",
    "in Module._call_impl",
    "in Module._wrapped_call_impl",
    "program.py:7 in keep",
    "program.py:11 in train",
)
COMMANDS = ("diagnose", "leaks", "peak", "sites", "blocks", "oom", "fragmentation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("all_frames")
    for name, size in (("run", "2000"), ("after", "3000")):
        run_source(folder, PROGRAM, f"{name}.alloctrace", size, cuda=True)
    return folder


@pytest.fixture(scope="module")
def trace(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


def find_stacks(data: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in the data that have a stack."""
    if isinstance(data, dict):
        if "stack_id" in data:
            yield data
        data = list(data.values())
    for item in data if isinstance(data, list) else ():
        yield from find_stacks(item)


@pytest.mark.parametrize("command", COMMANDS)
def test_all_frames_shows_complete_stacks_as_text_and_json(command: str, folder: Path, trace: alloctrace.Trace) -> None:
    arguments = [command, "run.alloctrace"]
    if command != "fragmentation":
        output = " ".join(run_analyze(folder, *arguments, "--all-frames").split())
        offsets = [output.find(frame) for frame in COMPLETE_STACK[:3]]
        assert -1 not in offsets and offsets == sorted(offsets)
        assert all(frame in output for frame in COMPLETE_STACK)
        assert "_wrapped_call_impl" not in run_analyze(folder, *arguments)

    rows = list(find_stacks(json.loads(run_analyze(folder, *arguments, "--json", "--all-frames"))))
    assert command == "fragmentation" or any(row["frames"] for row in rows)
    for row in rows:
        expected = [(frame.function, frame.line) for frame in trace.frames(row["stack_id"])]
        assert [(frame["function"], frame["line"]) for frame in row["frames"]] == expected
    # Without the option, JSON has no frames.
    assert not any("frames" in row for row in find_stacks(json.loads(run_analyze(folder, *arguments, "--json"))))


def test_all_frames_of_diff_come_from_the_trace_with_the_line(folder: Path) -> None:
    text = run_analyze(folder, "diff", "run.alloctrace", "after.alloctrace", "--json", "--all-frames")
    [device] = json.loads(text)["rows"]
    grown = device["changes"][0]
    assert "keep train <module>" in " ".join(frame["function"] for frame in grown["frames"])

    arguments = ("diff", "after.alloctrace", "run.alloctrace", "--json", "--all-frames", "--at", "step:20")
    [freed] = json.loads(run_analyze(folder, *arguments))["rows"]
    assert freed["change_bytes"] < 0 and all(row["frames"] or not row["filename"] for row in freed["changes"])

    positions = ("diff", "run.alloctrace", "--since", "step:3", "--until", "step:9", "--all-frames")
    assert "in Module._wrapped_call_impl" in " ".join(run_analyze(folder, *positions).split())
