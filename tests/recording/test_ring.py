"""The ring under sanitizers, cancellation of a thread that waits in a hook, and constant-time lookup of ids."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import core_probe
import numpy as np
import pytest
from running import WITH_SUPPORT, run_python

import pytorch_alloctrace as alloctrace

# In one build for both probes. The sanitizer does not see the copies that the compiler makes of a memcpy, and does not
# model fences (the one in the spool orders stores for a reader in another process).
THREAD = ["-O1", "-g1", "-fsanitize=thread", "-Wno-tsan", "-fno-builtin-memcpy", "-finstrument-functions"]

ADDRESS = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def run_probe(probe: str, *arguments: object, options: list[str] = THREAD) -> list[int]:
    """Return the numbers that a probe prints. A sanitizer's finding ends the probe with an error."""
    program = core_probe.build(probe, core_probe.RECORDING, options)
    # Without randomised addresses: the sanitizer of older compilers cannot run where they are as random as they can be.
    command = ["setarch", os.uname().machine, "-R", str(program), *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    return [int(number) for number in process.stdout.split()]


@pytest.mark.parametrize("options", [THREAD, ADDRESS], ids=["thread", "address"])
@pytest.mark.parametrize(("ring", "wait_ns"), [(1024, 60_000_000_000), (64, 0)])
def test_a_recording_of_many_threads_under_sanitizers(
    tmp_path: Path, ring: int, wait_ns: int, options: list[str]
) -> None:
    """Check for races and invalid accesses, and that each thread's events are in the trace in order."""
    path, threads, each = tmp_path / "t.alloctrace", 4, 20_000
    source = tmp_path / "source.py"
    source.write_text("\n".join(f"line {number}" for number in range(1, 5)))  # of eight that are asked for
    taken, late = run_probe(
        "ring_probe.cpp", path, tmp_path / "spool", source, ring, wait_ns, threads, each, options=options
    )
    trace = alloctrace.load(path)
    events = trace.events(columns=["kind", "thread", "address", "requested_bytes"])
    events = events[events["kind"] != "lost"]
    assert len(events) == taken and trace.integrity.missing_events == trace.integrity.corrupt_blocks == 0
    assert trace.integrity.lost == threads * each + late - taken
    assert (trace.integrity.lost > 0) == (wait_ns == 0)
    for thread in range(1, threads + 1):
        mine = events[events["thread"] == thread]
        address = mine["address"].to_numpy().astype(np.int64)
        is_second = np.diff(address, prepend=-1) == 0  # also of a thread that lost all its events
        assert (np.diff(address) >= 0).all() and (mine["requested_bytes"].to_numpy() == address * thread).all()
        # Each free is one event, or two if the writer had taken the first: no completion is missing, and none is twice.
        kinds = mine["kind"].astype(str).to_numpy()
        assert set(kinds[is_second]) <= {"free_completed"} and set(kinds[address % 2 == 1]) <= {"alloc"}
        requested = np.flatnonzero(kinds == "free_requested")
        if wait_ns:
            assert is_second[requested + 1].all() and is_second.sum() == len(requested)


def test_finding_a_location_costs_the_same_however_many_there_are(tmp_path: Path) -> None:
    few, many = (
        run_probe("location_probe.cpp", tmp_path / f"{count}.alloctrace", tmp_path / "spool", count)
        for count in (10, 2_000)
    )
    assert few[1] == many[1] == 0, "memory was asked for"
    assert 0 < many[0] / 2_000 < 2 * few[0] / 10


def test_a_thread_that_is_cancelled_while_it_waits_in_a_hook_does_not_end_the_program(tmp_path: Path) -> None:
    core_probe.library()  # built here: it may take longer than the program may
    program = "import core_probe; print(core_probe.library().probe_cancel_waiting(b'spool'))"
    command = [sys.executable, "-c", program]
    process = run_python(tmp_path, command, True, 600, {"PYTHONPATH": WITH_SUPPORT}, fresh=True)
    assert process.stdout == "1\n"
