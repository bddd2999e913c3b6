"""Memory by module: what the tables and the command show, and that all else is as without modules."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import Trace, TraceError

PROGRAM = """
import threading, torch
from torch import nn
import pytorch_alloctrace as alloctrace

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])
        self.kept = []
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            self.kept.append(x.exp())
            x = nn.Softmax(dim=-1)(x)
        return x

def use(path, **options):
    torch.manual_seed(0)
    with alloctrace.enable(path, devices="cpu", **options):
        model = Model()
        kept = [model(torch.ones(16, 64)) for _ in range(30)]
        alloctrace.mark("half")
        for _ in range(30):
            kept.append(model(torch.ones(16, 64)))
            alloctrace.step()
        in_thread = nn.Sequential(nn.ReLU(), nn.Linear(64, 64))
        for _ in range(3):
            thread = threading.Thread(target=lambda: kept.append([in_thread(kept[0]) for _ in range(200)]))
            thread.start()
            thread.join()

options = {"modules": {}, "none": {"modules": False}, "no_stacks": {"stacks": "none"}}
for name in options:
    use(f"{name}.alloctrace", **options[name])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("modules"), PROGRAM)


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return alloctrace.load(folder / "modules.alloctrace")


@pytest.fixture(scope="module")
def without(folder: Path) -> Trace:
    return alloctrace.load(folder / "none.alloctrace")


def test_each_module_holds_what_it_made(trace: Trace) -> None:
    block = 16 * 64 * 4
    held = trace.usage("end", by="module").set_index("site")["live_bytes"].to_dict()
    # The exponentials, and what modules without a name gave, of all layers.
    assert held["Model"] == held["Model.(Softmax)"] == 3 * 60 * block
    assert "Model.layers.0" not in held
    made = trace.usage(by="module").set_index("site")
    for name in ("Model.layers.0", "Model.layers.1", "Model.layers.2"):
        assert made.loc[name, ["allocations", "total_bytes", "live_bytes"]].tolist() == [60, 60 * block, 0]


def test_a_model_that_only_other_threads_call_gets_its_name(trace: Trace) -> None:
    """Its first events may have come before anybody could look; these are known by their class."""
    made = trace.usage(by="module").set_index("site")["allocations"]
    found = {name: int(count) for name, count in made.items() if name.startswith(("Sequential", "(Sequential)"))}
    assert sum(found.values()) == 3 * 200 * 2
    assert set(found) <= {"Sequential.0", "Sequential.1", "(Sequential).(ReLU)", "(Sequential).(Linear)"}
    # The name is there once the main thread goes on, after the first of the three threads.
    assert found["Sequential.0"] + found["Sequential.1"] >= 2 * 200 * 2


@pytest.mark.parametrize("depth", [1, 2])
def test_depth_sums_up_what_is_inside(trace: Trace, depth: int) -> None:
    whole = trace.usage(by="module")
    short = trace.usage(by=f"module:{depth}")
    names = whole["site"].map(lambda name: name if name.startswith("(out") else ".".join(name.split(".")[:depth]))
    expected = whole.groupby(names)[["allocations", "total_bytes", "live_bytes", "live_blocks"]].sum()
    assert (short.set_index("site")[list(expected.columns)].sort_index() == expected.sort_index()).all(axis=None)
    if depth == 2:
        assert {"Model.layers", "Model", "Model.(Softmax)"} <= set(short["site"])


def test_all_else_is_as_without_modules(trace: Trace, without: Trace) -> None:
    """Lines, stacks, the tree of calls and loops do not tell instances apart."""
    for by in ("line", "stack"):
        tables = [one.usage(by=by).drop(columns="stack_id") for one in (trace, without)]
        own = [table[table["filename"].str.endswith("program.py")] for table in tables]
        own = [table.sort_values([*table.columns], ignore_index=True) for table in own]
        pd.testing.assert_frame_equal(own[0], own[1], check_like=True)
    trees = [one.usage("mark:half", by="call").drop(columns="stack_id") for one in (trace, without)]
    pd.testing.assert_frame_equal(trees[0], trees[1])
    loops = [
        [(loop.depth, loop.rounds, one.frames(loop.function)[0]) for loop in one._recorded.replay.loops]
        for one in (trace, without)
    ]
    assert loops[0] == loops[1] and loops[0]
    columns = ["filename", "line", "leak_kind", "confidence"]
    assert trace.leaks().to_frame()[columns].equals(without.leaks().to_frame()[columns])


def test_a_trace_without_modules_says_so(folder: Path, without: Trace) -> None:
    no_stacks = alloctrace.load(folder / "no_stacks.alloctrace")
    for one in (without, no_stacks):
        with pytest.raises(TraceError, match="the trace has no modules: record the program again"):
            one.usage("end", by="module")
    assert "the trace has no modules" in run_analyze(folder, "peak", "none.alloctrace", "--by", "module", status=2)


def test_command_shows_modules_to_a_depth(folder: Path) -> None:
    text = run_analyze(folder, "peak", "modules.alloctrace", "--by", "module", "--depth", "2")
    assert "Model.(Softmax) (" in text and "Model.layers.0" not in text
    run_analyze(folder, "diff", "modules.alloctrace", "modules.alloctrace", "--by", "module", "--fail-above", "0")
    words = ("diff", "modules.alloctrace", "--since", "mark:half", "--by", "module", "--depth", "1", "--markdown")
    text = run_analyze(folder, *words)
    assert "| module |" in text and "module:1" not in text


@pytest.mark.parametrize("by", ["module:0", "module:x", "module:", "modules"])
def test_an_unknown_depth_is_refused(trace: Trace, by: str) -> None:
    with pytest.raises(ValueError, match="is not known"):
        trace.usage(by=by)
