"""Memory without a line of user code: cuBLAS workspaces of torch, older blocks, autograd's nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from command_line import run_command
from running import needs_cuda_build

import pytorch_alloctrace as alloctrace

pytestmark = needs_cuda_build
WORKSPACE, BEFORE = "cuBLAS workspace", "before the recording"

PRELUDE = """
import os
import torch
import pytorch_alloctrace as alloctrace
torch.set_num_threads(1)

def workspace_size():
    if "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        return 8 * 16 * 1024
    return 32 * 2**20 if torch.cuda.get_device_capability()[0] >= 9 else (2 * 4096 + 8 * 16) * 1024

def tensor():
    return torch.empty(SIZE, dtype=torch.uint8, device="cuda")

def grown():
    return torch.empty(1, dtype=torch.uint8, device="cuda").resize_(SIZE)

def multiply(x):
    return x @ x
"""

EQUAL_SIZES = """
alloctrace.enable("run.alloctrace")
SIZE = workspace_size()
blocks = [tensor(), grown()]
tensor(), grown()
x = torch.ones(64, 64, device="cuda", requires_grad=True)
multiply(x).sum().backward()
blocks += [tensor(), grown()]
tensor(), grown()
alloctrace.disable()
print(SIZE)
"""


@pytest.fixture
def record(run_cuda_program, tmp_path: Path) -> Callable[[str], alloctrace.Trace]:
    """Return a function that runs a program after PRELUDE and loads its trace, run.alloctrace."""

    def run(program: str) -> alloctrace.Trace:
        run_cuda_program(PRELUDE + dedent(program))
        return alloctrace.load(tmp_path / "run.alloctrace")

    return run


def live_memory(trace: alloctrace.Trace, at: alloctrace.trace.Position = "end") -> dict[str, tuple[int, int]]:
    """Return the live bytes and blocks on the device, by function or by the name of a row without a line."""
    table = trace.usage(at, device="cuda:0").groupby("function")[["live_bytes", "live_blocks"]].sum()
    return {str(name): (int(row["live_bytes"]), int(row["live_blocks"])) for name, row in table.iterrows()}


@pytest.mark.parametrize(
    "environment",
    [{}, {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}],
    ids=["default", "cudaMallocAsync", "small"],
)
def test_workspace_row_excludes_tensors_of_equal_size(
    run_cuda_program, tmp_path: Path, environment: dict[str, str]
) -> None:
    size = int(run_cuda_program(PRELUDE + EQUAL_SIZES, **environment).stdout)

    trace = alloctrace.load(tmp_path / "run.alloctrace")
    rows = live_memory(trace)
    # One workspace of the main thread, one of autograd's thread.
    assert rows[WORKSPACE] == (2 * size, 2)
    assert rows["tensor"] == (2 * size, 2)
    assert rows["grown"] == (2 * size, 2)
    assert rows["multiply"][0] < 2 * 64 * 64 * 4 + 512
    (row,) = trace.usage(device="cuda:0").query("site == @WORKSPACE").to_dict("records")
    assert (row["filename"], row["line"], row["user"], row["allocations"]) == ("", 0, False, 2)
    assert row["live_backward_bytes"] == 0
    assert trace.frames(row["stack_id"]) == []
    blocks = trace.live(device="cuda:0")
    assert blocks[blocks["site"] == WORKSPACE]["alloc_seq"].notna().all()
    assert set(trace.usage("end", device="cuda:0", by="phase")["phase"]) >= {"other"}


def test_growing_workspaces_are_named_in_all_outputs(record, tmp_path: Path) -> None:
    trace = record("""
        alloctrace.enable("run.alloctrace")
        x = torch.ones(64, 64, device="cuda")
        for n in range(28):
            with torch.cuda.stream(torch.cuda.Stream()):
                multiply(x)
            alloctrace.step()
        """)

    (leak,) = trace.diagnose()
    assert leak.kind == "leak"
    assert leak.title.startswith(f"{WORKSPACE}: +32.0 MiB per step")
    assert "stream" in " ".join(leak.sentences)
    for command in ("diagnose", "peak", "sites", "blocks", "diff --since 0 --until end"):
        text = run_command(tmp_path, [*command.split(), "run.alloctrace"]).stdout
        assert WORKSPACE in text, f"{command}: {text}"
    data = json.loads(run_command(tmp_path, ["run.alloctrace", "--json"]).stdout)
    (end,) = [device["end"] for device in data["devices"] if device["device"] == "cuda:0"]
    (site,) = [row for row in end["sites"] if row["site"]["function"] == WORKSPACE]
    assert site["site"]["filename"] == ""


def test_cleared_workspace_is_freed_and_allocated_again(record) -> None:
    trace = record("""
        alloctrace.enable("run.alloctrace")
        SIZE = workspace_size()
        x = torch.ones(64, 64, device="cuda")
        multiply(x)
        torch._C._cuda_clearCublasWorkspaces()
        alloctrace.mark("cleared")
        block = tensor()  # where the workspace was
        multiply(x)
        """)

    assert WORKSPACE not in live_memory(trace, "mark:cleared")
    assert live_memory(trace)[WORKSPACE][1] == 1
    assert live_memory(trace)["tensor"][1] == 1


def test_blocks_have_no_age_when_older_than_recording(record, tmp_path: Path) -> None:
    trace = record("""
        SIZE = workspace_size()
        x = torch.ones(64, 64, device="cuda")
        multiply(x)
        older = [tensor(), tensor()]
        alloctrace.enable("run.alloctrace")
        block = tensor()
        for n in range(3):
            multiply(x)
            alloctrace.step()
        """)

    size = live_memory(trace)["tensor"][0]
    assert live_memory(trace)[BEFORE] == (2 * size + 64 * 64 * 4, 3)
    assert live_memory(trace)[WORKSPACE] == (size, 1)
    for blocks in (trace.live(device="cuda:0"), trace.blocks(device="cuda:0").query("state != 'inactive'")):
        older = blocks["site"].isin([BEFORE, WORKSPACE])
        for name in {"alloc_seq", "alloc_ns", "age_ns", "step"} & set(blocks):
            assert blocks.loc[older, name].isna().all(), name
            assert blocks.loc[~older, name].notna().all(), name
    peak = run_command(tmp_path, ["peak", "run.alloctrace"]).stdout
    assert peak.count(BEFORE) == 3, peak  # by line, as a line of the role unknown, and by age
    blocks_text = run_command(tmp_path, ["blocks", "run.alloctrace"]).stdout
    assert "age unknown" in blocks_text
    assert BEFORE in blocks_text
    assert "null" in run_command(tmp_path, ["blocks", "run.alloctrace", "--json"]).stdout


def test_backward_allocation_is_named_by_node_when_line_is_unknown(record) -> None:
    # The forward operators ran before the recording, so their lines are unknown.
    trace = record("""
        x, y = (torch.ones(512, 512, device="cuda", requires_grad=True) for _ in range(2))
        results = [x.exp().sum(), y.tanh().sum()]
        alloctrace.enable("run.alloctrace")
        for result in results:
            result.backward()
        """)

    rows = live_memory(trace)
    named = {name.partition(",")[0] for name in rows if "line of forward unknown" in name}
    assert {"ExpBackward0", "TanhBackward0"} <= named
