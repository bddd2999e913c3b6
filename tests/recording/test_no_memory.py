"""Failed allocations in the recorder's threads: details are missing, and the program continues."""

from __future__ import annotations

from pathlib import Path

import core_probe

import pytorch_alloctrace as alloctrace

# Threads of a recording in the order of their starts: see test_failed_start.py.
PROGRAM = """
import ctypes, os, threading, time, torch
import pytorch_alloctrace as alloctrace

library = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[-1])
session = alloctrace.enable("t.alloctrace")

def thread_name(thread):
    with open(f"/proc/self/task/{thread}/comm") as file:
        return file.read().strip()

def recorder_threads():
    return sorted(thread for thread in map(int, os.listdir("/proc/self/task")) if thread_name(thread) == "alloctrace")

while len(recorder_threads()) < 4:  # a thread sets its name after its start
    time.sleep(0.001)
writer, names, memory, scans = recorder_threads()

ended = threading.Event()

def start_thread(name):  # waits: an ended thread has no name
    threading.Thread(target=lambda: (torch.empty(10), ended.wait()), name=name).start()

library.starve(memory, 0)
block = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
while library.refused() < 3:
    time.sleep(0.01)
library.starve(0, 0)
while "cuda:0" not in set(session.load().driver_memory()["device"]):
    time.sleep(0.1)

for number in range(1, 13):
    library.starve(names, number)
    while not library.refused():
        start_thread("a name that is too long to be kept inside of a string")
        time.sleep(0.02)
library.starve(0, 0)
before = len(session.load().threads())
start_thread("the last of the threads, with a long name too")
while len(session.load().threads()) == before:
    time.sleep(0.01)
alloctrace.disable()
ended.set()
"""


def test_recording_continues_when_its_threads_get_no_memory(run_cuda_program, tmp_path: Path) -> None:
    """Fail three allocations of the sampling thread, and each allocation of the naming thread once."""
    run_cuda_program(PROGRAM, LD_PRELOAD=str(core_probe.build_shim("no_memory.cpp")))

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0
    assert trace.driver_memory(device="cuda:0")["reserved_bytes"].max() >= 10 << 20
    assert list(trace.threads()["name"])[-1] == "the last of the threads, with a long name too"
