"""Samples of the driver's memory, and of memory outside of PyTorch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from marked_programs import run_analyze
from running import gpu_count, has_nvidia_gpu

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.live_memory import DeviceNeed, device_need, live_memory
from pytorch_alloctrace.reading.table import Table

MIB, GIB = 2**20, 2**30

PROGRAM = """
import os, resource, time, torch, pytorch_alloctrace as alloctrace
extra = os.environ["SIMCUDA_NVML_EXTRA"]
session = alloctrace.enable("t.alloctrace", devices=("cuda",))
def wait_for(used):
    # Wait for a second equal sample: the first may be taken during a driver call. The test has a timeout.
    while list(session.load().driver_memory(device="cuda:0")["used_bytes"]).count(used << 20) < 2:
        time.sleep(0.1)
blocks = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda")]
wait_for(100 + 600 + 1024)
alloctrace.mark("another process grows")
open(extra, "w").write(str(300 << 20))
wait_for(100 + 600 + 1024 + 300)
alloctrace.mark("torch grows")
blocks.append(torch.empty(50 << 20, dtype=torch.uint8, device="cuda"))
pinned = torch.empty(1000).pin_memory()
wait_for(150 + 600 + 1024 + 300)
alloctrace.disable()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


def test_memory_outside_of_pytorch_is_sampled(run_cuda_program, tmp_path: Path) -> None:
    if has_nvidia_gpu():
        pytest.skip("the sizes are the simulated device's; another test is for real GPUs")
    extra = tmp_path / "extra"
    extra.write_text("0")
    process = run_cuda_program(
        PROGRAM,
        SIMCUDA_CONTEXT="600MiB",
        SIMCUDA_OTHER_PROCESSES="99:1GiB",
        SIMCUDA_NVML_EXTRA=str(extra),
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    table = trace.driver_memory(device="cuda:0")
    assert (table["total_bytes"] == 80 * GIB).all() and list(trace.hardware()["total_bytes"]) == [80 * GIB]
    marks = trace.marks().set_index("name")["begin_seq"]

    def last_sample_before(seq: int) -> pd.Series[Any]:
        return table[table["seq"] < seq].iloc[-1]

    alone, grown, end = (last_sample_before(seq) for seq in (*marks, 1 << 63))
    assert alone["outside_bytes"] == 600 * MIB + GIB, "the context, and the other process"
    assert grown["outside_bytes"] == end["outside_bytes"] == 900 * MIB + GIB, "independent of what torch reserves"
    assert [row["reserved_bytes"] // MIB for row in (alone, grown, end)] == [100, 100, 150]
    assert {row["this_process_bytes"] - row["reserved_bytes"] for row in (alone, grown, end)} == {600 * MIB}
    assert alone["other_processes_bytes"] == GIB
    # Memory that another device needs: the sum of both maxima, which may not coincide.
    need = live_memory(trace._recorded, "peak", device="cuda:0").need
    assert need == DeviceNeed(150 * MIB, 900 * MIB + GIB, 80 * GIB) and need.bytes == 1050 * MIB + GIB
    assert live_memory(trace._recorded, "peak", device="cuda:0", since="mark:torch grows").need is None
    text = " ".join(run_analyze(tmp_path, "peak", "t.alloctrace").split())
    assert "2.03 GiB of the device's 80.0 GiB: torch reserved at most 150 MiB, and 1.88 GiB" in text
    resident = trace.driver_memory(device="cpu")
    assert len(resident) > 1 and (resident["used_bytes"] > 100 * MIB).all() and resident["outside_bytes"].isna().all()
    assert resident["used_bytes"].max() <= int(process.stdout) + 16 * MIB  # the kernel counts in batches
    assert list(trace.events().query("device == 'pinned'")["requested_bytes"])[:1] == [4000]


OUTSIDE_ALLOCATORS = """
import mmap, time, torch, pytorch_alloctrace as alloctrace
session = alloctrace.enable("t.alloctrace", devices=("cuda",))
def wait_for_sample(device, column, condition):
    # The test has a timeout.
    while True:
        table = session.load().driver_memory()
        values = table[table["device"] == device][column]
        if len(values) > 1 and condition(int(values.iloc[-1])) and condition(int(values.iloc[-2])):
            return int(values.iloc[-1])
        time.sleep(0.1)
before = wait_for_sample("cpu", "anonymous_bytes", lambda anonymous: anonymous > 0)
alloctrace.mark("heap")
heap = bytearray(b"x") * (200 << 20)
heap_grown = wait_for_sample("cpu", "anonymous_bytes", lambda anonymous: anonymous > before + (150 << 20))
resident = int(session.load().driver_memory(device="cpu")["used_bytes"].iloc[-1])
alloctrace.mark("shared")
shared = mmap.mmap(-1, 200 << 20)
shared.write(heap)
wait_for_sample("cpu", "used_bytes", lambda used: used > resident + (150 << 20))
alloctrace.mark("pinned")
block = torch.empty(3 << 20, dtype=torch.uint8, pin_memory=True)
wait_for_sample("pinned", "used_bytes", lambda held: held == 4 << 20)
del block
block = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
wait_for_sample("pinned", "used_bytes", lambda held: held == 5 << 20)
torch._C._host_emptyCache()
wait_for_sample("pinned", "used_bytes", lambda held: held == 1 << 20)
alloctrace.disable()
"""


def test_memory_outside_torch_allocators_is_sampled(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(OUTSIDE_ALLOCATORS)

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    table = trace.driver_memory()
    marks = trace.marks().set_index("name")["begin_seq"]
    cpu, pinned = (table[table["device"] == device].reset_index() for device in ("cpu", "pinned"))
    before_heap, before_shared, before_pinned = (cpu[cpu["seq"] < seq].iloc[-1] for seq in marks)
    assert (cpu["anonymous_bytes"] < cpu["used_bytes"]).all(), "files of libraries are resident, too"
    assert before_shared["anonymous_bytes"] - before_heap["anonymous_bytes"] > 150 * MIB
    assert before_pinned["used_bytes"] - before_shared["used_bytes"] > 150 * MIB
    assert before_pinned["anonymous_bytes"] - before_shared["anonymous_bytes"] < 50 * MIB, "shared memory is not"
    assert list(pinned["used_bytes"].unique() // MIB) == [4, 5, 1], "rounded up; freed blocks stay in the pool"
    assert pinned["total_bytes"].isna().all() and pinned["anonymous_bytes"].isna().all()
    assert table[table["device"].str.startswith("cuda")]["anonymous_bytes"].isna().all()


def test_sample_taken_during_a_driver_call_is_ignored() -> None:
    """Take a sample between the driver's allocation and torch's event of this allocation."""
    samples = Table({"used_bytes": np.array([100, 150, 150, 170]), "outside_bytes": np.array([0, 50, 0, 20])})
    trace: Any = SimpleNamespace(
        replay=SimpleNamespace(peak=lambda *_: SimpleNamespace(bytes=150)),
        driver_samples=lambda device: samples,
        device_bytes=lambda device: None,
    )
    assert device_need(trace, "cuda:0") == DeviceNeed(150, 20, None)


OTHER_PROCESS = """
import torch
block = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
input()
"""
RECORDED_PROCESS = """
import subprocess, sys, time, torch, pytorch_alloctrace as alloctrace
session = alloctrace.enable("t.alloctrace", devices=("cuda",))
def wait_for_sample(condition):
    # Wait until the last two samples meet the condition. The test has a timeout.
    while True:
        table = session.load().driver_memory(device="cuda:0")
        if len(table) > 1 and condition(table.iloc[-2:]).all():
            return int(table["used_bytes"].iloc[-1])
        time.sleep(0.1)
block = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
alone = wait_for_sample(lambda samples: samples["reserved_bytes"] == 100 << 20)
alloctrace.mark("alone")
other = subprocess.Popen([sys.executable, "other.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert other.stdout.readline() == "ready\\n"
wait_for_sample(lambda samples: samples["used_bytes"] >= alone + (1 << 30))
alloctrace.mark("with another")
other.communicate("\\n")
alloctrace.disable()
"""


def test_memory_of_another_process_is_sampled_on_a_real_gpu(run_cuda_program, tmp_path: Path) -> None:
    if not has_nvidia_gpu():
        pytest.skip("each process has simulated devices of its own")
    (tmp_path / "other.py").write_text(OTHER_PROCESS)

    run_cuda_program(RECORDED_PROCESS)

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    table = trace.driver_memory(device="cuda:0")
    marks = trace.marks().set_index("name")["begin_seq"]
    alone, together = (table[table["seq"] < seq].iloc[-1] for seq in marks)
    assert {row["reserved_bytes"] // MIB for row in (alone, together)} == {100}
    assert GIB <= together["outside_bytes"] - alone["outside_bytes"] < 3 * GIB, "its tensor, and its context"


def sampled_devices(trace: alloctrace.Trace) -> set[str]:
    return set(trace.events().query("kind == 'memory'")["device"])


def test_only_devices_in_use_are_sampled(run_cuda_program, tmp_path: Path) -> None:
    if has_nvidia_gpu() and gpu_count() < 2:
        pytest.skip("needs two GPUs, this machine has one")
    run_cuda_program(
        """
        import time, torch, pytorch_alloctrace as alloctrace
        with alloctrace.enable("before.alloctrace"):
            block = torch.empty(10, device="cuda:1")
            time.sleep(0.5)
        with alloctrace.enable("within.alloctrace"):
            time.sleep(0.5)
        with alloctrace.enable("both.alloctrace"):
            other = torch.empty(10, device="cuda:0")
        """,
        devices=2,
    )

    sampled = {name: sampled_devices(alloctrace.load(tmp_path / f"{name}.alloctrace")) for name in ("before", "within")}
    assert sampled == {"before": {"cpu", "cuda:1"}, "within": {"cpu", "cuda:1"}}
    both = alloctrace.load(tmp_path / "both.alloctrace")
    assert sampled_devices(both) == {"cpu", "cuda:0", "cuda:1"} and len(both.hardware()) == 2


HANGING = """
import os, sys, time, torch, pytorch_alloctrace as alloctrace

hang = os.environ["SIMCUDA_NVML_HANG"]

def wait_for_sample(session):
    while "cuda:0" not in set(session.load().driver_memory()["device"]):
        time.sleep(0.1)

def make_driver_hang():
    with open(hang, "w"):
        pass
    while os.path.getsize(hang) == 0:  # until a query hangs
        time.sleep(0.01)

def fork():
    child = os.fork()
    if child == 0:
        with alloctrace.enable("child.alloctrace", overwrite=True):
            torch.empty(10)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

session = alloctrace.enable("first.alloctrace")
block = torch.empty(1 << 20, device="cuda")
wait_for_sample(session)
make_driver_hang()
"""
HANGS = {
    "fork": "fork(); fork()",
    "exit from C": "import ctypes; ctypes.CDLL(None).exit(0)",
    "a second session": """
alloctrace.disable()
fork()
with alloctrace.enable("second.alloctrace"):
    time.sleep(0.3)
os.unlink(hang)
with alloctrace.enable("third.alloctrace") as session:
    wait_for_sample(session)
""",
}


@pytest.mark.parametrize("case", HANGS)
def test_program_ends_when_the_driver_hangs(run_cuda_program, tmp_path: Path, case: str) -> None:
    """Run under a time limit: a program that waits for the driver never ends."""
    if has_nvidia_gpu():
        pytest.skip("only the simulated device can be made to hang")
    run_cuda_program(HANGING + HANGS[case], timeout=100, SIMCUDA_NVML_HANG=str(tmp_path / "hang"))

    first = alloctrace.load(tmp_path / "first.alloctrace")
    assert sampled_devices(first) == {"cpu", "cuda:0"} and first.integrity.state == "complete"
    assert first.integrity.ended == (case != "exit from C")
    if "fork()" in HANGS[case]:
        assert alloctrace.load(tmp_path / "child.alloctrace").integrity.state == "complete"
    if case == "a second session":
        second, third = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("second", "third"))
        assert sampled_devices(second) == {"cpu"}, "a second thread started to sample the driver"
        assert sampled_devices(third) == {"cpu", "cuda:0"}, "the driver answers again"
