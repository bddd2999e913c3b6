"""RAPIDS Memory Manager (RMM) as torch's allocator, on a real GPU only.

RMM's wheels use undocumented driver functions that the simulated device lacks (tools/simcuda/README.md).
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from running import has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(not importlib.util.find_spec("rmm"), reason="rmm is not installed"),
    pytest.mark.skipif(not has_nvidia_gpu(), reason="rmm's wheels do not run on the simulated device"),
]

PROGRAM = """
import json, torch, rmm, pytorch_alloctrace as alloctrace
from rmm.allocators.torch import rmm_torch_allocator
pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 28)
counted = rmm.mr.StatisticsResourceAdaptor(pool)
rmm.mr.set_current_device_resource(counted)
torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
alloctrace.enable("t.alloctrace", devices=("cuda",))
blocks = [torch.empty(1000 * (number + 1), device="cuda") for number in range(20)]
del blocks[::2]
x = torch.ones(100, 100, device="cuda", requires_grad=True)
(x @ x).sum().backward()
torch.cuda.synchronize()
counts = counted.allocation_counts
json.dump({name: getattr(counts, name) for name in ("current_bytes", "current_count", "total_bytes", "total_count")},
          open("counts.json", "w"))
alloctrace.disable()
"""


def test_events_equal_rmm_counts(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(PROGRAM)

    counts = json.loads((tmp_path / "counts.json").read_text())
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0 and trace.verify().missed_frees == 0
    events = trace.events()
    allocs = events[(events["kind"] == "alloc") & (events["device"] == "cuda:0")]
    assert len(allocs) == counts["total_count"] > 20
    assert allocs["requested_bytes"].sum() == counts["total_bytes"]
    live = trace.live(device="cuda:0")
    assert (len(live), live["requested_bytes"].sum()) == (counts["current_count"], counts["current_bytes"])
