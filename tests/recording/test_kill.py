"""SIGKILL during a recording: every event whose hook has returned is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pytorch_alloctrace as alloctrace

# One process imports torch and forks the victims, each of which starts a recording.
PROGRAM = """
import json, mmap, os, random, signal, sys, threading, time, torch
import pytorch_alloctrace as alloctrace
from alloctrace_victim import allocate_for_ever
from pytorch_alloctrace.recording import session
session.WAIT_NS = 60 * 10**9  # on a busy machine, the writer may start later than a hook would wait
random.seed(int(sys.argv[2]))
device = sys.argv[3]
results = []
for number in range(int(sys.argv[1])):
    witness = mmap.mmap(-1, 4096)
    child = os.fork()
    if child == 0:
        torch.empty(1, device=device)  # CUDA is in use when the recording begins
        alloctrace.enable(f"kill-{number}.alloctrace")
        witness[0:8] = (1).to_bytes(8, "little")
        for i in range(2):
            threading.Thread(target=allocate_for_ever, args=(witness, 8 * (1 + i), device), name=f"victim-{i}").start()
        signal.pause()
    def counted(slot):
        return int.from_bytes(witness[64 * slot:64 * slot + 8], "little")
    # Kill after this number: sometimes at the first, sometimes while a block (of 65,536 events) is being written.
    # Every second process is killed only after both threads have allocated.
    allocations = random.choice([0, 500, 5_000, 50_000, 250_000]) * random.random()
    while not all(map(counted, [0] if number % 2 else [0, 1, 2])) or counted(1) + counted(2) < allocations:
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "the victim died by itself"
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    results.append([counted(1), counted(2)])
json.dump(results, open("witness.json", "w"))
"""

# A module, so that the stacks contain its file name. The test asserts its line numbers.
VICTIM = """
import torch
def allocate_for_ever(witness, slot, device):
    # One store of eight bytes: struct.pack_into clears them first, and a kill in between would leave zero.
    counter = memoryview(witness).cast("Q")
    count = 0
    while True:
        one_of(count % 5, device)
        count += 1
        # Written after the hook has returned: what is counted here must be in the trace.
        counter[slot] = count
def one_of(kind, device):
    return torch.empty(100 + kind, device=device)
"""


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow("recording"))])
def test_committed_events_are_read_when_killed_at_random_instants(run_program, tmp_path: Path, kills: int) -> None:
    assert_killed_recordings_are_complete(run_program, tmp_path, kills, "cpu")


def assert_killed_recordings_are_complete(run: Callable[..., Any], tmp_path: Path, kills: int, device: str) -> None:
    """Kill programs that allocate on a device, and compare their traces with their own counts."""
    (tmp_path / "alloctrace_victim.py").write_text(VICTIM)
    run(PROGRAM, str(kills), "20261121", device, timeout=900)
    recovered = 0
    for number, witnesses in enumerate(json.loads((tmp_path / "witness.json").read_text())):
        trace = alloctrace.load(tmp_path / f"kill-{number}.alloctrace")
        integrity = trace.integrity
        assert integrity.state == "complete" and integrity.lost == 0 and integrity.missing_events == 0, integrity
        assert not integrity.ended and integrity.spool_read
        recovered += integrity.recovered
        events = trace.events()
        events = events[events["device"] == ("cuda:0" if device == "cuda" else device)]
        allocs = events[events["kind"] == "alloc"]
        frees = events[events["kind"] == "free_completed"]
        # Each counted call allocated and freed one block; the trace has its stack and thread.
        counts = allocs["thread"].value_counts().tolist()
        counts = sorted(counts + [0] * (2 - len(counts)))
        names = [*trace.threads()["name"]]
        note = f"kill {number}: {witnesses} counted, {counts} in the trace of {names}; {integrity}"
        assert len(counts) == 2, note
        for counted, in_trace in zip(sorted(witnesses), counts, strict=True):
            assert counted <= in_trace <= counted + 1, note
        assert len(frees) >= sum(witnesses) and trace.verify().missed_frees == 0
        for stack in set(allocs["stack_id"]):
            frames = [(frame.function, os.path.basename(frame.filename), frame.line) for frame in trace.frames(stack)]
            assert frames[:2] == [
                ("one_of", "alloctrace_victim.py", 13),
                ("allocate_for_ever", "alloctrace_victim.py", 8),
            ]
    assert recovered > 0, "no kill left events in the spool: recovery was not tested"
