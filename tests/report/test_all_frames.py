"""--all-frames: under each row the whole stack, frames of libraries too; and `frames` in JSON."""

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
WHOLE = (
    "linear.py",
    "in Module._call_impl",
    "in Module._wrapped_call_impl",
    "program.py:7 in keep",
    "program.py:11 in train",
)
VERBS = ("diagnose", "leaks", "peak", "sites", "blocks", "oom", "fragmentation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("all_frames")
    for name, size in (("run", "2000"), ("after", "3000")):
        run_source(made, PROGRAM, f"{name}.alloctrace", size, cuda=True)
    return made


@pytest.fixture(scope="module")
def trace(folder: Path) -> alloctrace.Trace:
    return alloctrace.load(folder / "run.alloctrace")


def with_stack(data: Any) -> Iterator[dict[str, Any]]:
    """All objects in the data that have a stack."""
    if isinstance(data, dict):
        if "stack_id" in data:
            yield data
        data = list(data.values())
    for item in data if isinstance(data, list) else ():
        yield from with_stack(item)


@pytest.mark.parametrize("verb", VERBS)
def test_all_frames_shows_whole_stacks_innermost_first_as_text_and_json(
    verb: str, folder: Path, trace: alloctrace.Trace
) -> None:
    words = [verb, "run.alloctrace"]
    if verb != "fragmentation":
        shown = " ".join(run_analyze(folder, *words, "--all-frames").split())
        offsets = [shown.find(frame) for frame in WHOLE[:3]]
        assert -1 not in offsets and offsets == sorted(offsets)
        assert all(frame in shown for frame in WHOLE)
        assert "_wrapped_call_impl" not in run_analyze(folder, *words)
    rows = list(with_stack(json.loads(run_analyze(folder, *words, "--json", "--all-frames"))))
    assert verb == "fragmentation" or any(row["frames"] for row in rows)
    for row in rows:
        expected = [(frame.function, frame.line) for frame in trace.frames(row["stack_id"])]
        assert [(frame["function"], frame["line"]) for frame in row["frames"]] == expected
    # Without the option there are none.
    assert not any("frames" in row for row in with_stack(json.loads(run_analyze(folder, *words, "--json"))))


def test_all_frames_of_a_comparison_are_those_of_the_trace_that_has_the_line(folder: Path) -> None:
    text = run_analyze(folder, "diff", "run.alloctrace", "after.alloctrace", "--json", "--all-frames")
    [found] = json.loads(text)["rows"]
    grown = found["changes"][0]
    assert "keep train <module>" in " ".join(frame["function"] for frame in grown["frames"])
    words = ("diff", "after.alloctrace", "run.alloctrace", "--json", "--all-frames", "--at", "step:20")
    [gone] = json.loads(run_analyze(folder, *words))["rows"]
    assert gone["change_bytes"] < 0 and all(row["frames"] or not row["filename"] for row in gone["changes"])
    positions = ("diff", "run.alloctrace", "--since", "step:3", "--until", "step:9", "--all-frames")
    assert "in Module._wrapped_call_impl" in " ".join(run_analyze(folder, *positions).split())
