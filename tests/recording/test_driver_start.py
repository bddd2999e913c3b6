"""Recordings where the driver's library (NVML) does not start, as without a driver, or starts slowly."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running import ROOT, build_simulated_device, has_nvidia_gpu, needs_cuda_build, run_python, with_cuda

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="replaces a library of the simulated driver"),
]

# Loaded before the simulated device's library, which has all other functions. Each start adds a line to `starts`.
LIBRARY = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int nvmlInit_v2(void) {
  FILE* starts = fopen("starts", "a");
  fputs("starts\\n", starts);
  fclose(starts);
  if (getenv("NVML_FAILS")) return 9;  // the driver is not loaded
  usleep(300000);
  return ((int (*)(void))dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD), "nvmlInit_v2"))();
}
"""


@pytest.fixture
def run_with_library(tmp_path: Path) -> Callable[..., None]:
    build_simulated_device()
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "nvml.c").write_text(LIBRARY)
    simulated = ROOT / "build/simcuda/libsimcuda.so"
    arguments = [folder / "nvml.c", simulated, "-o", folder / "libnvidia-ml.so.1", "-ldl"]
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,--no-as-needed", *arguments], check=True)

    def run(program: str, **environment: str) -> None:
        (tmp_path / "program.py").write_text(program)
        command = with_cuda(["env", f"LD_LIBRARY_PATH={folder}", sys.executable, "program.py"])
        run_python(tmp_path, command, check=True, timeout=600, environment=environment)

    return run


def test_driver_library_is_opened_once_when_its_start_fails(run_with_library, tmp_path: Path) -> None:
    run_with_library(
        """
import time, torch, pytorch_alloctrace as alloctrace
block = torch.empty(10, device="cuda")
tensors = []
def samples():  # not by device="cpu", which is an error before the first sample
    table = session.load().driver_memory()
    return (table["device"] == "cpu").sum()
for name in ("first", "second"):
    with alloctrace.enable(f"{name}.alloctrace") as session:
        # Grow host memory and wait for a sample of it, four times.
        for _ in range(4):
            before = samples()
            tensors.append(torch.ones(5_000_000))
            while samples() == before:
                time.sleep(0.1)
""",
        NVML_FAILS="1",
    )

    assert (tmp_path / "starts").read_text().splitlines() == ["starts"]
    for name in ("first", "second"):
        trace = alloctrace.load(tmp_path / f"{name}.alloctrace")
        assert set(trace.driver_memory()["device"]) == {"cpu"} and trace.integrity.state == "complete"


def test_recording_end_waits_when_driver_library_starts_slowly(run_with_library, tmp_path: Path) -> None:
    """End a recording during the start of the library, which takes longer than a query may."""
    run_with_library(
        """
import os, time, torch, pytorch_alloctrace as alloctrace
block = torch.empty(10, device="cuda")
with alloctrace.enable("t.alloctrace"):
    while not os.path.exists("starts"):
        time.sleep(0.001)
"""
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert set(trace.driver_memory()["device"]) == {"cpu", "cuda:0"} and trace.integrity.ended
