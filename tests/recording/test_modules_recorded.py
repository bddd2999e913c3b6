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
    *((name, "cpu") for name in ("mlp", "transformer", "convolutions", "recursion", "two_models", "made_anew")),
    *((name, "cpu") for name in ("recomputed", "odd_calls", "known_first_as_a_part")),
    # Where threads of autograd call modules or hooks.
    *(pytest.param(name, "cuda", marks=needs_cuda_build) for name in ("mlp", "recomputed", "odd_calls")),
]
OUTSIDE = "(outside of modules)"


def modules_and_regions(trace: Trace) -> pd.DataFrame:
    """Return each event with a Python stack, the module that the trace reports, and the region around the event."""
    regions: dict[int, list[str]] = {}
    module_of = trace._recorded.stacks.modules.name
    rows = []
    for event in trace.events().itertuples():
        if event.kind == "region_begin":
            regions.setdefault(event.thread, []).append(trace._recorded.text(event.requested_bytes))
        elif event.kind == "region_end":
            regions[event.thread].pop()
        elif event.device and event.stack_id:
            inside = regions.get(event.thread) or [OUTSIDE]
            rows.append((event.kind, event.requested_bytes, module_of(event.stack_id), inside[-1]))
    return pd.DataFrame(rows, columns=["kind", "requested_bytes", "module", "region"])


def allocated(table: pd.DataFrame, by: str) -> dict[str, int]:
    return table[table["kind"] == "alloc"].groupby(by)["requested_bytes"].sum().to_dict()


@pytest.mark.parametrize(("program", "device"), CASES)
def test_each_event_has_the_module_that_was_called(tmp_path: Path, program: str, device: str) -> None:
    command = [sys.executable, str(PROGRAM), program, device]
    run_python(tmp_path, with_cuda(command) if device == "cuda" else command, True, 600, {})
    # The program as it is, and with torch's hooks.
    plain, hooked = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("plain", "hooks"))
    events_by_module = modules_and_regions(hooked)
    wrong = events_by_module[events_by_module["module"] != events_by_module["region"]]
    assert wrong.empty, wrong.drop_duplicates().head(20).to_string()
    assert events_by_module["module"].nunique() > 3 and len(events_by_module) > 60
    # Without hooks, whose calls take another way through torch's code, each module allocates the same.
    expected = allocated(events_by_module, "region")
    assert allocated(modules_and_regions(plain), "module") == expected
    if device == "cpu":  # no thread of autograd allocates, so nothing is counted with the line that caused it
        sites = plain.usage(by="module").set_index("site")["total_bytes"]
        assert sites[sites > 0].to_dict() == expected
    if (program, device) == ("mlp", "cuda"):
        check_backward(plain)


def check_backward(trace: Trace) -> None:
    """Check, by the sizes of the layers, the modules of allocations of autograd's thread, which have no stack."""
    columns = ["kind", "requested_bytes", "stack_id", "forward_stack_id"]
    events = trace.events(kinds=["alloc"], columns=columns).query("stack_id == 0 and forward_stack_id > 0")
    module_of = trace._recorded.stacks.modules.name
    of_size = {
        size: {module_of(stack) for stack in events.loc[events["requested_bytes"] == size, "forward_stack_id"]}
        for size in (31 * 17 * 4, 53 * 31 * 4, 71 * 53 * 4, 11 * 31 * 4)
    }
    # The gradients of the weights, and of the first activation, which two modules have.
    weights = [{"Sequential.0"}, {"Sequential.2"}, {"Sequential.4"}]
    assert list(of_size.values()) == [*weights, {"Sequential.1", "Sequential.2"}]
    peak = trace.usage("peak", device="cuda:0", by="module").set_index("site")
    assert peak.loc["Sequential.4", "live_backward_bytes"] > 0
