"""Events of CUDA allocators without a tracker: cudaMallocAsync, no caching, pluggable functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import WITH_SUPPORT, has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="needs the log of the simulated driver; a real driver has none"),
]
CALLS = {"malloc": "alloc", "malloc_async": "alloc", "free": "free_completed", "free_async": "free_completed"}

PROGRAM = """
import gc, sys, warnings
import torch
import pytorch_alloctrace as alloctrace
from cuda_programs import PROGRAMS
warnings.simplefilter("ignore")
pluggable, *names = sys.argv[1:]
if pluggable == "pluggable":
    library = alloctrace.pluggable_library()
    pair = torch.cuda.memory.CUDAPluggableAllocator(library, "alloctrace_malloc", "alloctrace_free")
    torch.cuda.memory.change_current_allocator(pair)
alloctrace.enable("t.alloctrace", devices=("cuda",))
for name in names:
    PROGRAMS[name].run(PROGRAMS[name].steps // 4)
    gc.collect()
torch.cuda.synchronize()
alloctrace.disable()
"""
# A pluggable allocator has no empty_cache and no record_stream.
PROGRAMS = ("mlp", "two_devices", "threads")
ALLOCATORS = {
    "cudaMallocAsync": ({"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, (*PROGRAMS, "streams", "empty_cache")),
    "no caching": ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, (*PROGRAMS, "streams", "empty_cache")),
    "pluggable": ({}, PROGRAMS),
}

Calls = list[tuple[str, int, int, int]]  # alloc or free_completed, device, address, size


def read_driver_calls(path: Path) -> Calls:
    lines = (line.split() for line in path.read_text().splitlines())
    return [(CALLS[line[0]], int(line[1]), int(line[2], 16), int(line[3])) for line in lines if line[0] in CALLS]


def group_by_address(calls: Calls) -> dict[int, Calls]:
    """Group calls by address: the order of calls is defined at one address, but not between threads."""
    table: dict[int, Calls] = {}
    for call in calls:
        table.setdefault(call[2], []).append(call)
    return table


@pytest.mark.parametrize("name", ALLOCATORS)
def test_events_equal_driver_log_without_caching_allocator(run_cuda_program, tmp_path: Path, name: str) -> None:
    environment, programs = ALLOCATORS[name]
    log = tmp_path / "driver.log"
    arguments = ("pluggable" if name == "pluggable" else "native", *programs)

    run_cuda_program(PROGRAM, *arguments, devices=2, PYTHONPATH=WITH_SUPPORT, SIMCUDA_LOG=str(log), **environment)

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0
    verification = trace.verify()
    assert verification.unmatched_frees == verification.missed_frees == 0
    events = trace.events(kinds=("alloc", "free_completed"))
    events = events[events["device"].str.startswith("cuda")]
    columns = (events["kind"], events["device"].str.removeprefix("cuda:").astype(int), events["address"])
    recorded = [*zip(*columns, events["requested_bytes"], strict=True)]
    ours, theirs = group_by_address(recorded), group_by_address(read_driver_calls(log))
    different = [address for address in {*ours, *theirs} if ours.get(address) != theirs.get(address)]
    assert len(recorded) > 1000 and not different, [(ours.get(key), theirs.get(key)) for key in different[:3]]


def test_blocks_are_recorded_once_when_caching_was_switched_before(run_cuda_program, tmp_path: Path) -> None:
    """Switch caching while nothing is recorded: blocks were then recorded twice, or not at all."""
    run_cuda_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        torch.empty(10, device="cuda")
        switches = [(None, None), (False, None), (True, None), (None, False), (True, None)]
        for number, (between, within) in enumerate(switches):
            if between is not None:
                torch.cuda.caching_allocator_enable(between)
            with alloctrace.enable(f"{number}.alloctrace", devices=("cuda",)):
                torch.empty(1000, dtype=torch.uint8, device="cuda")
                if within is not None:
                    torch.cuda.caching_allocator_enable(within)
                torch.empty(2000, dtype=torch.uint8, device="cuda")
        """
    )

    traces = [alloctrace.load(tmp_path / f"{number}.alloctrace") for number in range(5)]
    for kind in ("alloc", "free_completed"):
        assert [list(trace.events(kinds=(kind,))["requested_bytes"]) for trace in traces] == [[1000, 2000]] * 5, kind
    verifications = [trace.verify() for trace in traces]
    assert not any(result.unmatched_frees or result.missed_frees for result in verifications)
