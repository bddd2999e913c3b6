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

# Options for both probes. The sanitizer misses copies that the compiler inlines for memcpy, and does not model fences
# (the fence in the spool orders stores for a reader in another process).
THREAD_SANITIZER = ["-O1", "-g1", "-fsanitize=thread", "-Wno-tsan", "-fno-builtin-memcpy", "-finstrument-functions"]

ADDRESS_SANITIZER = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def run_probe(probe: str, *arguments: object, options: list[str] = THREAD_SANITIZER) -> list[int]:
    """Return the numbers that a probe prints. A report of a sanitizer makes the probe fail."""
    program = core_probe.build(probe, core_probe.RECORDING, options)
    # Without address randomisation: sanitizers of older compilers fail where it has its maximum entropy.
    command = ["setarch", os.uname().machine, "-R", str(program), *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    return [int(number) for number in process.stdout.split()]


@pytest.mark.parametrize("options", [THREAD_SANITIZER, ADDRESS_SANITIZER], ids=["thread", "address"])
@pytest.mark.parametrize(("ring", "wait_ns"), [(1024, 60_000_000_000), (64, 0)])
def test_events_of_many_threads_are_complete_under_sanitizers(
    tmp_path: Path, ring: int, wait_ns: int, options: list[str]
) -> None:
    """Check for races and invalid accesses, and the order of each thread's events."""
    path, threads, each = tmp_path / "t.alloctrace", 4, 20_000
    source = tmp_path / "source.py"
    source.write_text("\n".join(f"line {number}" for number in range(1, 5)))  # the probe requests eight

    recorded_count, late_count = run_probe(
        "ring_probe.cpp", path, tmp_path / "spool", source, ring, wait_ns, threads, each, options=options
    )

    trace = alloctrace.load(path)
    events = trace.events(columns=["kind", "thread", "address", "requested_bytes"])
    events = events[events["kind"] != "lost"]
    assert len(events) == recorded_count and trace.integrity.missing_events == trace.integrity.corrupt_blocks == 0
    assert trace.integrity.lost == threads * each + late_count - recorded_count
    assert (trace.integrity.lost > 0) == (wait_ns == 0)
    for thread in range(1, threads + 1):
        thread_events = events[events["thread"] == thread]
        address = thread_events["address"].to_numpy().astype(np.int64)
        is_second = np.diff(address, prepend=-1) == 0  # also of a thread that lost all its events
        assert (np.diff(address) >= 0).all() and (thread_events["requested_bytes"].to_numpy() == address * thread).all()
        # A free is one event, or two if the writer consumed the request first: each has exactly one completion.
        kinds = thread_events["kind"].astype(str).to_numpy()
        assert set(kinds[is_second]) <= {"free_completed"} and set(kinds[address % 2 == 1]) <= {"alloc"}
        requested = np.flatnonzero(kinds == "free_requested")
        if wait_ns:
            assert is_second[requested + 1].all() and is_second.sum() == len(requested)


def test_location_lookup_cost_is_independent_of_the_location_count(tmp_path: Path) -> None:
    few, many = (
        run_probe("location_probe.cpp", tmp_path / f"{count}.alloctrace", tmp_path / "spool", count)
        for count in (10, 2_000)
    )
    assert few[1] == many[1] == 0, "memory was allocated"
    assert 0 < many[0] / 2_000 < 2 * few[0] / 10


def test_program_survives_when_a_thread_that_waits_in_a_hook_is_cancelled(tmp_path: Path) -> None:
    core_probe.library()  # built here: the build may take longer than the program's timeout
    program = "import core_probe; print(core_probe.library().probe_cancel_waiting(b'spool'))"
    command = [sys.executable, "-c", program]

    process = run_python(tmp_path, command, True, 600, {"PYTHONPATH": WITH_SUPPORT}, fresh=True)

    assert process.stdout == "1\n"
