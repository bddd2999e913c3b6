"""Modules of events, compared with torch's own forward hooks."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest
from running import ROOT, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace import Trace

PROGRAM = ROOT / "tests/support/module_programs.py"
CASES = [
    *((name, "cpu") for name in ("mlp", "transformer", "convolutions", "recursion", "two_models", "replaced_models")),
    *((name, "cpu") for name in ("recomputed", "odd_calls", "submodule_first")),
    # On CUDA, threads of autograd call modules or hooks.
    *(pytest.param(name, "cuda", marks=needs_cuda_build) for name in ("mlp", "recomputed", "odd_calls")),
]
NO_MODULE = "(outside of modules)"


def modules_and_regions(trace: Trace) -> pd.DataFrame:
    """Return kind, size, module and enclosing region of each event that has a Python stack."""
    regions: dict[int, list[str]] = {}
    module_of = trace._recorded.stacks.modules.name
    rows = []
    for event in trace.events().itertuples():
        if event.kind == "region_begin":
            regions.setdefault(event.thread, []).append(trace._recorded.text(event.requested_bytes))
        elif event.kind == "region_end":
            regions[event.thread].pop()
        elif event.device and event.stack_id:
            open_regions = regions.get(event.thread) or [NO_MODULE]
            rows.append((event.kind, event.requested_bytes, module_of(event.stack_id), open_regions[-1]))
    return pd.DataFrame(rows, columns=["kind", "requested_bytes", "module", "region"])


def allocated(table: pd.DataFrame, by: str) -> dict[str, int]:
    return table[table["kind"] == "alloc"].groupby(by)["requested_bytes"].sum().to_dict()


@pytest.mark.parametrize(("program", "device"), CASES)
def test_event_modules_equal_those_of_torch_forward_hooks(tmp_path: Path, program: str, device: str) -> None:
    command = [sys.executable, str(PROGRAM), program, device]

    run_python(tmp_path, with_cuda(command) if device == "cuda" else command, True, 600, {})

    without_hooks, with_hooks = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("plain", "hooks"))
    events_by_module = modules_and_regions(with_hooks)
    wrong = events_by_module[events_by_module["module"] != events_by_module["region"]]
    assert wrong.empty, wrong.drop_duplicates().head(20).to_string()
    assert events_by_module["module"].nunique() > 3 and len(events_by_module) > 60
    # torch calls modules through other code without hooks: each module must allocate the same.
    expected = allocated(events_by_module, "region")
    assert allocated(modules_and_regions(without_hooks), "module") == expected
    if device == "cpu":  # autograd's threads allocate nothing, so each allocation has a stack of its own
        sites = without_hooks.usage(by="module").set_index("site")["total_bytes"]
        assert sites[sites > 0].to_dict() == expected
    if (program, device) == ("mlp", "cuda"):
        check_backward(without_hooks)


def check_backward(trace: Trace) -> None:
    """Check the modules of autograd's allocations, which have no stack, by the sizes of the layers."""
    columns = ["kind", "requested_bytes", "stack_id", "forward_stack_id"]
    events = trace.events(kinds=["alloc"], columns=columns).query("stack_id == 0 and forward_stack_id > 0")
    module_of = trace._recorded.stacks.modules.name
    modules_by_size = {
        size: {module_of(stack) for stack in events.loc[events["requested_bytes"] == size, "forward_stack_id"]}
        for size in (31 * 17 * 4, 53 * 31 * 4, 71 * 53 * 4, 11 * 31 * 4)
    }
    # The gradients of the three weights, and of the first activation, which belongs to two modules.
    weights = [{"Sequential.0"}, {"Sequential.2"}, {"Sequential.4"}]
    assert list(modules_by_size.values()) == [*weights, {"Sequential.1", "Sequential.2"}]
    peak = trace.usage("peak", device="cuda:0", by="module").set_index("site")
    assert peak.loc["Sequential.4", "live_backward_bytes"] > 0
