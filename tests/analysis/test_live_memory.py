"""What a device holds at a position."""

from __future__ import annotations

from pathlib import Path

import core_probe
from format_reader import BLOCK_HEADER, EVENTS, TraceFile

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.analysis.usage.live_memory import live_memory
from pytorch_alloctrace.reading.kinds import KINDS

CUDA = 2
"""The location of a CUDA device, as the probe defines them."""
STEPS, EVENTS_A_STEP = 4, 11


def record(path: Path) -> None:
    """Each step is ten allocations and its end, in a block of the file."""
    with core_probe.Recorder(path) as recorder:
        for step in range(STEPS):
            first = EVENTS_A_STEP * step
            rows = [
                {"kind": KINDS.index("alloc"), "address": 512 * (first + n), "size": 512, "location": CUDA, "thread": 1}
                for n in range(EVENTS_A_STEP - 1)
            ]
            rows.append({"kind": KINDS.index("step"), "size": step})
            times = [{**row, "time": 1000 * (first + number)} for number, row in enumerate(rows)]
            recorder.push(core_probe.make_events(times))
            recorder.flush()


def test_the_end_of_a_damaged_trace_is_in_its_last_step(tmp_path: Path) -> None:
    """The count of events is not the number of the last one."""
    path = tmp_path / "t.alloctrace"
    record(path)
    trace = alloctrace.load(path)
    [device] = trace.devices
    whole = live_memory(trace, "end", device=device)
    assert (whole.seq, whole.step, whole.requested) == (None, STEPS - 1, 512 * STEPS * (EVENTS_A_STEP - 1))
    data = bytearray(path.read_bytes())
    blocks = [block for block in TraceFile(path).blocks if block.type == EVENTS]
    assert len(blocks) == STEPS
    for block in blocks[:2]:
        data[block.offset + BLOCK_HEADER + 1] ^= 1
    path.write_bytes(data)
    damaged = alloctrace.load(path)
    assert damaged.integrity.events == 2 * EVENTS_A_STEP
    found = live_memory(damaged, "end", device=device)
    assert (found.step, found.requested) == (STEPS - 1, 512 * 2 * (EVENTS_A_STEP - 1))
    assert live_memory(damaged, "step:2", device=device).step == 2
