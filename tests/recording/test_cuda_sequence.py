"""Completeness and order of CUDA events, compared with torch's own history and the driver's log.

`ALLOCTRACE_TEST_SCALE=full` compares half a million events instead of a tenth of them; -s prints the comparisons.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cuda_account import DriverCall, driver_differences, read_driver_log, replay_states, segment_calls
from cuda_oracle import KINDS, compare_sequences, read_history, read_recorded, tracked_events
from running import WITH_SUPPORT, gpu_count, has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace

pytestmark = needs_cuda_build
FULL = os.environ.get("ALLOCTRACE_TEST_SCALE") == "full"
SCALE = 3.0 if FULL else 0.3
TIMEOUT_S = 1800 if FULL else 600

RECORD = """
import pathlib, sys, warnings
warnings.simplefilter("ignore")
from cuda_oracle import record
from cuda_programs import PROGRAMS
scale, *names = sys.argv[1:]
for name in names:
    steps = max(1, round(PROGRAMS[name].steps * float(scale)))
    record(pathlib.Path("."), name, lambda: PROGRAMS[name].run(steps), stacks=False)
"""


@dataclass(frozen=True)
class Setting:
    programs: tuple[str, ...]
    devices: int = 1
    memory: str = "80GiB"
    allocator: str = ""


COMMON = (*("streams", "two_devices", "memory_pools", "graphs", "empty_cache", "expandable_segments"), "threads")
SETTINGS = {
    "default": Setting(("mlp", "transformer", "convnet", *COMMON), 2),
    "expandable": Setting(COMMON, 2, allocator="expandable_segments:True"),
    "little memory": Setting(("out_of_memory", "collected_segments", "layout_settings"), memory="3GiB"),
}


def available_devices(simulated: int) -> int:
    """Return the number of devices of a program: the machine's GPUs, or the simulated devices without a GPU."""
    return gpu_count() if has_nvidia_gpu() else simulated


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_sequence_equals_torch_history_and_driver_log(run_cuda_program, tmp_path: Path, setting: Setting) -> None:
    devices = available_devices(setting.devices)
    skipped = {"two_devices"} if devices < 2 else set()
    programs = [name for name in setting.programs if name not in skipped]

    run_cuda_program(
        RECORD,
        str(SCALE),
        *programs,
        memory=setting.memory,
        devices=setting.devices,
        timeout=TIMEOUT_S,
        PYTHONPATH=WITH_SUPPORT,
        PYTORCH_ALLOC_CONF=setting.allocator,
        SIMCUDA_LOG=str(tmp_path / "driver.log"),
    )

    recorded_calls: dict[int, list[DriverCall]] = {}
    differences = []
    for name in programs:
        recorded = read_recorded(tmp_path, name, devices)
        comparison = compare_sequences(name, recorded.ours, recorded.reported)
        print(f"\n{comparison}", end="")
        assert comparison.events > 100 * SCALE
        differences += comparison.differences
        for device, calls in segment_calls(recorded.trace.events()).items():
            recorded_calls.setdefault(device, []).extend(calls)
        if name in ("out_of_memory", "collected_segments"):
            assert comparison.kinds["oom"] > 0
            assert comparison.kinds["segment_free"] + comparison.kinds["segment_unmap"] > 10
    assert not differences, "\n".join(differences[:20])
    if not has_nvidia_gpu():
        logged = read_driver_log(tmp_path / "driver.log")
        count = sum(map(len, recorded_calls.values()))
        against_driver = driver_differences(logged, recorded_calls)
        print(f"\n{count} segment events compared with the driver's log, {len(against_driver)} differences")
        assert count > 10 and not against_driver, "\n".join(against_driver[:20])


CONCURRENT_PROGRAM = """
import json, sys, threading, warnings
import torch
import pytorch_alloctrace as alloctrace
from cuda_oracle import History
from cuda_programs import threads
warnings.simplefilter("ignore")
step = int(sys.argv[1])  # allocations between two actions of this thread

def allocations():
    devices = range(torch.cuda.device_count())
    return sum(torch.cuda.memory_stats(device)["allocation.all.allocated"] for device in devices)

def wait_for_allocations(count):
    target = allocations() + count
    while working.is_alive() and allocations() < target:
        pass

long_lived = [torch.empty(1000 * n + 1, device=f"cuda:{n % torch.cuda.device_count()}") for n in range(50)]
history = History(stacks=False)
sys.setswitchinterval(1e-4)
stop = threading.Event()
working = threading.Thread(target=threads, args=(10**9,), kwargs={"stop": stop})
working.start()
wait_for_allocations(step)
for name in ("first", "second"):
    with alloctrace.enable(f"{name}.alloctrace", devices=("cuda",)) as session:
        for _ in range(8):
            wait_for_allocations(step)
            assert session.snapshot()
        del long_lived[::3]
        if name == "first":
            continue
        stop.set()
        working.join()
        torch.cuda.synchronize()
        blocks = [
            (segment["device"], block["address"], block["requested_size"])
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        json.dump(blocks, open("blocks.json", "w"))
history.write("history.npz")
"""


def test_events_and_states_are_complete_while_threads_allocate(run_cuda_program, tmp_path: Path) -> None:
    devices = available_devices(2)
    step = round(200 * SCALE)

    run_cuda_program(CONCURRENT_PROGRAM, str(step), devices=devices, timeout=TIMEOUT_S, PYTHONPATH=WITH_SUPPORT)

    reported, _ = read_history(tmp_path / "history.npz")
    snapshots = 0  # in torch's history of each device, before this recording
    for name in ("first", "second"):
        trace = alloctrace.load(tmp_path / f"{name}.alloctrace")
        assert trace.integrity.state == "complete" and trace.integrity.lost == 0
        ours = tracked_events(trace, devices)
        compared = []
        for device in range(devices):
            history = reported[reported["device"] == device].reset_index(drop=True)
            # Compare from the snapshot that began this recording, which ended at some event before the next one.
            begin = np.flatnonzero(history["kind"] == KINDS.index("snapshot"))[snapshots]
            compared.append(history[begin : begin + (ours["device"] == device).sum()])
        comparison = compare_sequences(f"{name} recording, begun mid-run", ours, pd.concat(compared))
        print(f"\n{comparison}")
        assert not comparison.differences, "\n".join(comparison.differences[:20])
        assert comparison.kinds["alloc"] >= 8 * step
        snapshots += comparison.kinds["snapshot"] // devices

        columns = ["seq", "kind", "device", "address", "requested_bytes", "autograd_seq", "node_seq"]
        *states, (_, live, _) = replay_states(trace.events(columns=columns))
        assert len(states) == devices * 10  # one at the start, eight requested, one at the end
        for number, replayed, state in states:
            assert replayed == state, f"the state of event {number} differs from the replayed events"
        contents = {frozenset(state) for _, _, state in states}
        assert len(contents) > len(states) // 2, "the live blocks hardly changed between the states"
    expected = {(device, address): size for device, address, size in json.loads((tmp_path / "blocks.json").read_text())}
    assert live == expected
    assert len(live) > 10


def test_pool_of_pluggable_functions_is_recorded_once(run_cuda_program, tmp_path: Path) -> None:
    """Check that segments, which the caching allocator requests from the pair, are not recorded as blocks."""
    run_cuda_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        from pathlib import Path
        from cuda_oracle import record
        def run():
            library = alloctrace.pluggable_library()
            pair = torch.cuda.memory.CUDAPluggableAllocator(library, "alloctrace_malloc", "alloctrace_free")
            pool = torch.cuda.MemPool(pair.allocator())
            with torch.cuda.use_mem_pool(pool):
                blocks = [torch.empty(size, device="cuda") for size in (10, 500_000, 5_000_000)]
            del blocks[1]
        record(Path("."), "pool", run, stacks=False)
        """,
        PYTHONPATH=WITH_SUPPORT,
    )

    recorded = read_recorded(tmp_path, "pool", device_count=1)
    comparison = compare_sequences("pool", recorded.ours, recorded.reported)
    assert not comparison.differences, "\n".join(comparison.differences)
    assert comparison.kinds["segment_alloc"] > 0 and recorded.trace.verify().missed_frees == 0
