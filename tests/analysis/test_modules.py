"""Memory by module: the tables, the command, and unchanged results elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from marked_programs import run_analyze
from shared_recordings import run_source

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import Trace, TraceError
from pytorch_alloctrace.analysis.usage.module_folding import choose_depth
from pytorch_alloctrace.reading.modules import ModuleNames

PROGRAM = """
import threading, time, torch
from torch import nn
import pytorch_alloctrace as alloctrace

class Pause(nn.Module):
    seconds = 0
    def forward(self, x):
        time.sleep(self.seconds)  # the thread that looks up the names gets the GIL during this call
        return x

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
        in_thread = nn.Sequential(nn.ReLU(), nn.Linear(64, 64), Pause())
        for seconds in (0.002, 0, 0):
            Pause.seconds = seconds
            thread = threading.Thread(target=lambda: kept.append([in_thread(kept[0]) for _ in range(200)]))
            thread.start()
            thread.join()

options = {"modules": {}, "none": {"modules": False}, "no_stacks": {"stacks": "none"}}
for name in options:
    use(f"{name}.alloctrace", **options[name])
"""


FOLDED_PROGRAM = """
import torch
from torch import nn
import pytorch_alloctrace as alloctrace

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Sequential(*[nn.Sigmoid() for _ in range(count)]) for count in (12, 8))
    def forward(self, x):
        return self.down(self.up(x))

with alloctrace.enable("run.alloctrace", devices="cpu"):
    inputs = [torch.ones(1 << 20) for _ in range(13)]  # more than any module, less than both
    output = Net()(inputs[0].requires_grad_())
"""


OUTSIDE_PROGRAM = """
import torch
from torch import nn
import pytorch_alloctrace as alloctrace

class Unregistered(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = [torch.ones(256, 256, requires_grad=True) for _ in range(4)]
    def parameters(self):
        return self.weights
    def forward(self, x):
        for weight in self.weights:
            x = x @ weight
        return x

def train(path, optimizer_class, model_class=Unregistered):
    alloctrace.enable(path, devices="cpu")
    model = model_class()
    optimizer = optimizer_class(model.parameters())
    alloctrace.mark("built")
    for _ in range(3):
        model(torch.ones(4, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        alloctrace.step()
    alloctrace.disable()

train("run.alloctrace", torch.optim.Adam)
train("sgd.alloctrace", torch.optim.SGD)
train("layers.alloctrace", torch.optim.Adam, lambda: nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]))
"""
LAYER_BYTES = 256 * 256 * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_source(tmp_path_factory.mktemp("modules"), PROGRAM)


@pytest.fixture(scope="module")
def trace(folder: Path) -> Trace:
    return alloctrace.load(folder / "modules.alloctrace")


@pytest.fixture(scope="module")
def without_modules(folder: Path) -> Trace:
    return alloctrace.load(folder / "none.alloctrace")


def test_usage_by_module_has_bytes_that_module_allocated_and_its_parameters(trace: Trace) -> None:
    block = 16 * 64 * 4
    live_bytes = trace.usage("end", by="module").set_index("site")["live_bytes"].to_dict()
    # The exponentials and the results of the unnamed modules, of all layers.
    assert live_bytes["Model"] == live_bytes["Model.(Softmax)"] == 3 * 60 * block
    assert live_bytes["Model.layers.0"] == (64 + 1) * 64 * 4  # parameters
    usage = trace.usage(by="module").set_index("site")
    for name in ("Model.layers.0", "Model.layers.1", "Model.layers.2"):
        assert usage.loc[name, ["allocations", "total_bytes", "live_bytes"]].tolist() == [60, 60 * block, 0]


def test_module_called_only_by_other_threads_is_named(trace: Trace) -> None:
    """The first events may precede the name lookup: these have the class name."""
    allocations = trace.usage(by="module").set_index("site")["allocations"]
    by_module = {
        name: int(count) for name, count in allocations.items() if name.startswith(("Sequential", "(Sequential)"))
    }

    assert sum(by_module.values()) == 3 * 200 * 2
    assert set(by_module) <= {"Sequential.0", "Sequential.1", "(Sequential).(ReLU)", "(Sequential).(Linear)"}
    # The names are looked up during the first thread.
    assert by_module["Sequential.0"] + by_module["Sequential.1"] >= 2 * 200 * 2


@pytest.mark.parametrize("depth", [1, 2])
def test_usage_by_module_to_depth_includes_submodules(trace: Trace, depth: int) -> None:
    usage = trace.usage(by="module")
    shallow = trace.usage(by=f"module:{depth}")
    names = usage["site"].map(lambda name: name if name.startswith("(out") else ".".join(name.split(".")[:depth]))
    expected = usage.groupby(names)[["allocations", "total_bytes", "live_bytes", "live_blocks"]].sum()

    assert (shallow.set_index("site")[list(expected.columns)].sort_index() == expected.sort_index()).all(axis=None)
    if depth == 2:
        assert {"Model.layers", "Model", "Model.(Softmax)"} <= set(shallow["site"])


@pytest.mark.parametrize(
    ("modules", "depth"),
    [
        # Flat leaves of two equal halves: the halves, not the leaves, show where most is.
        ({f"Net.{half}.{leaf}": 10 for half in "ab" for leaf in range(12)}, 2),
        # Twelve equal layers: 8 of them hold less than 80 %.
        ({f"Net.h.{layer}.attn": 10 for layer in range(12)}, 2),
        # Few leaves hold most: no name is folded.
        ({"Net.a.0": 90, "Net.a.1": 70, **{f"Net.b.{leaf}": 1 for leaf in range(20)}}, None),
        ({f"Net{number}": 10 for number in range(20)}, None),
        ({}, None),
    ],
)
def test_modules_are_folded_until_few_rows_hold_most(modules: dict[str, int], depth: int | None) -> None:
    assert choose_depth([*modules.items()]) == depth


def test_peak_by_module_shows_the_largest_parts_of_the_model_first(tmp_path: Path) -> None:
    folder = run_source(tmp_path, FOLDED_PROGRAM)

    text = run_analyze(folder, "peak", "run.alloctrace", "--by", "module")
    at_depth_3 = run_analyze(folder, "peak", "run.alloctrace", "--by", "module", "--depth", "3")

    rows = text.partition("\nBY ROLE")[0].splitlines()
    sizes = [float(row.split()[2]) for row in rows if "%" in row and "MiB" in row and " more " not in row]
    assert sizes == sorted(sizes, reverse=True)
    assert "Net.up (" in text and "Net.down (" in text and "Net.up.0" not in text
    assert "Names of 2 parts include the modules below: --depth 3" in text
    assert "Net.up.0" in at_depth_3 and "Names of" not in at_depth_3


def test_memory_outside_of_modules_is_split_by_role_with_the_line_that_allocated_most(tmp_path: Path) -> None:
    folder = run_source(tmp_path, OUTSIDE_PROGRAM)

    text = " ".join(run_analyze(folder, "peak", "run.alloctrace", "--by", "module").split())
    usage = alloctrace.load(folder / "run.alloctrace").usage("peak", by="module").set_index("site")["live_bytes"]

    assert usage["(outside of modules: parameter)"] == 4 * LAYER_BYTES
    assert usage["(outside of modules: optimizer state)"] >= 8 * LAYER_BYTES
    name = "(outside of modules: optimizer state)"
    assert re.search(re.escape(name) + r" \(\d+ blocks, mostly from program.py:\d+ in train\) optimizer.step\(\)", text)


def test_module_has_its_parameters_and_their_optimizer_state(tmp_path: Path) -> None:
    folder = run_source(tmp_path, OUTSIDE_PROGRAM)
    trace = alloctrace.load(folder / "layers.alloctrace")

    usage = trace.usage("peak", by="module").set_index("site")["live_bytes"]

    text = " ".join(run_analyze(folder, "peak", "layers.alloctrace", "--by", "module").split())
    assert "Sequential.3 (8 blocks, optimizer state 514 KiB, parameters 257 KiB)" in text
    # Weight and bias, two moments of each, and their two counters of steps.
    assert [usage[f"Sequential.{layer}"] for layer in range(4)] == [3 * (LAYER_BYTES + 256 * 4) + 2 * 4] * 4
    assert not {"(outside of modules: parameter)", "(outside of modules: optimizer state)"} & {*usage.index}
    assert usage.sum() == trace.usage("peak", by="role")["live_bytes"].sum()


def test_role_outside_of_modules_that_holds_nothing_at_one_position_is_not_new_or_gone(tmp_path: Path) -> None:
    folder = run_source(tmp_path, OUTSIDE_PROGRAM)
    trace, sgd = (alloctrace.load(folder / f"{name}.alloctrace") for name in ("run", "sgd"))

    table = alloctrace.compare(sgd, trace, at="step:0", by="module").set_index("function")
    changes = trace.diff("mark:built", "step:0", by="module").set_index("site")["change_bytes"]

    assert set(table["match"]) == {"same"}
    assert table.loc["(outside of modules: optimizer state)", "live_bytes_before"] == 0
    assert changes["(outside of modules: parameter)"] == 0
    assert changes["(outside of modules: optimizer state)"] >= 8 * LAYER_BYTES


def test_lines_stacks_calls_and_loops_are_independent_of_modules(trace: Trace, without_modules: Trace) -> None:
    columns = ["filename", "line", "function", "allocations", "total_bytes", "live_bytes", "live_blocks"]
    for by in ("line", "stack"):
        tables = [t.usage(by=by)[columns] for t in (trace, without_modules)]
        own_rows = [table[table["filename"].str.endswith("program.py")] for table in tables]
        own_rows = [table.sort_values([*table.columns], ignore_index=True) for table in own_rows]
        pd.testing.assert_frame_equal(own_rows[0], own_rows[1], check_like=True)
    trees = [t.usage("mark:half", by="call").drop(columns="stack_id") for t in (trace, without_modules)]
    pd.testing.assert_frame_equal(trees[0], trees[1])
    loops = [
        [(loop.depth, loop.rounds, t.frames(loop.function)[0]) for loop in t._recorded.replay.loops]
        for t in (trace, without_modules)
    ]
    assert loops[0] == loops[1] and loops[0]
    columns = ["filename", "line", "leak_kind", "confidence"]
    assert trace.leaks().to_frame()[columns].equals(without_modules.leaks().to_frame()[columns])


def test_usage_by_module_raises_when_trace_has_no_modules(folder: Path, without_modules: Trace) -> None:
    no_stacks = alloctrace.load(folder / "no_stacks.alloctrace")
    for unnamed in (without_modules, no_stacks):
        with pytest.raises(TraceError, match="the trace has no modules: record the program again"):
            unnamed.usage("end", by="module")
    assert "the trace has no modules" in run_analyze(folder, "peak", "none.alloctrace", "--by", "module", status=2)


def test_commands_show_modules_to_depth(folder: Path) -> None:
    text = run_analyze(folder, "peak", "modules.alloctrace", "--by", "module", "--depth", "2")
    assert "Model.(Softmax) (" in text and "Model.layers.0" not in text
    run_analyze(folder, "diff", "modules.alloctrace", "modules.alloctrace", "--by", "module", "--fail-above", "0")
    arguments = ("diff", "modules.alloctrace", "--since", "mark:half", "--by", "module", "--depth", "1", "--markdown")
    text = run_analyze(folder, *arguments)
    assert "| module |" in text and "module:1" not in text


@pytest.mark.parametrize("by", ["module:0", "module:x", "module:", "modules"])
def test_usage_by_module_of_invalid_depth_raises(trace: Trace, by: str) -> None:
    with pytest.raises(ValueError, match="is not known"):
        trace.usage(by=by)


def test_module_that_a_corrupt_trace_does_not_define_has_no_root() -> None:
    stacks = np.zeros(1, np.uint32)
    names = ModuleNames(
        [("", 0, ""), ("Net", 0, ""), ("Linear", 1, "fc"), ("Linear", 2**32 - 16, "fc")], stacks, stacks
    )

    assert [names.root_of(module) for module in (1, 2, 3, 2**32 - 16)] == [1, 1, 0, 0]
