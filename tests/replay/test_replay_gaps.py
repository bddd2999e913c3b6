"""Replay after lost events: exact again from the next allocator state on; and of allocators without segments."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from format_reader import BLOCK_HEADER, EVENTS, Block, TraceFile
from replay_oracle import read_expected, state_differences
from running import WITH_SUPPORT, has_nvidia_gpu, needs_cuda_build

import pytorch_alloctrace as alloctrace

pytestmark = [
    needs_cuda_build,
    pytest.mark.skipif(has_nvidia_gpu(), reason="the programs need a device that no other process uses"),
]
MIB = 2**20
BLOCK_ALLOCATED = 1  # node_seq of a state_block

RUN = """
import gc, json, sys
from pathlib import Path
import replay_programs
gc.disable()
replay_programs.run_program(Path("t"), Path("expected"), json.loads(sys.argv[1]))
"""


def draw_operations(seed: int) -> list[list[Any]]:
    """Return random operations, with checks in the middle and at the end."""
    rng = random.Random(seed)
    operations: list[list[Any]] = []
    for number in range(60):
        size = rng.choice([rng.randrange(1, 4096), rng.randrange(1, MIB), rng.randrange(MIB, 40 * MIB)])
        operations.append(["allocate", size, rng.randrange(2), rng.randrange(2)])
        if number % 5 > 1:
            operations.append(["free", rng.randrange(1000)])
        if number % 20 == 9:
            operations += [
                ["free_while_used", rng.randrange(1000), 2],
                ["release", rng.randrange(2), 2],
                ["empty_cache"],
            ]
        if number == 30:
            operations.append(["check"])
    return [*operations, ["check"]]


OPERATIONS = [
    *[*draw_operations(1), ["flush"], *draw_operations(2), ["flush"], *draw_operations(3), ["snapshot"], ["flush"]],
    *[*draw_operations(4), ["flush"], *draw_operations(5), ["snapshot"], ["flush"], *draw_operations(6)],
]


class Sample:
    """The trace of a program, its checkpoints, and the event numbers of checkpoints and allocator states."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t.0"
        self.checkpoints = read_expected(folder / "expected")
        trace = alloctrace.load(self.path)
        self.mark_of = {f"mark:{name}": seq for name, seq in trace.marks().set_index("name")["begin_seq"].items()}
        """Event number of each checkpoint except the last, which is the end."""
        states = trace.events(columns=["device", "seq", "requested_bytes"], kinds=["allocator_state"])
        self.states = [(device, seq, seq + count) for device, seq, count in states.itertuples(index=False)]
        """Device, first and last event of each allocator state."""

    def next_states(self, event: int) -> int:
        """Return the last event of the first state of each device after an event."""
        ends = {}
        for device, first, last in self.states:
            if first > event:
                ends.setdefault(device, last)
        return max(ends.values())

    def load_without_blocks(self, lost: Sequence[Block]) -> alloctrace.Trace:
        data, path = self.path.read_bytes(), self.path.with_name("cut.alloctrace")
        for block in reversed(lost):
            data = data[: block.offset] + data[block.offset + BLOCK_HEADER + len(block.payload) :]
        path.write_bytes(data)
        return alloctrace.load(path)


def assert_exact_outside_gap(trace: alloctrace.Trace, sample: Sample, first: int, last: int) -> tuple[int, int]:
    """Check a trace without events `first` to `last`; return the numbers of exact and of wrong checkpoints."""
    next_states = sample.next_states(last)
    exact = wrong = 0
    for checkpoint in sample.checkpoints:
        mark = sample.mark_of.get(checkpoint.at)
        if mark is not None and first <= mark <= last:
            continue  # the mark is in the gap
        differences = state_differences(trace, checkpoint)
        if mark is None or mark < first or mark > next_states:
            assert not differences, (checkpoint.at, first, last, differences[:5])
            exact += 1
        else:
            wrong += bool(differences)
    verified = trace.verify()
    assert not verified.ok and verified.lost == last + 1 - first
    # Consequences of a loss are not contradictions.
    assert verified.contradictions == 0 and not verified.contradiction_list and not verified.differences
    return exact, wrong


def test_replay_is_exact_before_gap_and_after_next_allocator_state(
    run_cuda_program: Callable[..., Any], tmp_path: Path
) -> None:
    """An allocator state that is partly in the gap is ignored."""
    arguments = {"PYTHONPATH": WITH_SUPPORT, "PYTORCH_ALLOC_CONF": "expandable_segments:False"}
    run_cuda_program(RUN, json.dumps(OPERATIONS), devices=2, **arguments)
    sample = Sample(tmp_path)
    assert alloctrace.load(sample.path).verify().ok and len(sample.states) >= 6
    exact = wrong = after_loss = states_hit = 0
    blocks = [block for block in TraceFile(sample.path).blocks if block.type == EVENTS and block.count]
    assert len(blocks) >= 6
    for block in blocks[:-1]:
        end = block.first + block.count
        states = [state for state in sample.states if state[1] < end and state[2] >= block.first]
        if block is blocks[0] if states else any(first == end for _, first, _ in sample.states):
            continue
        trace = sample.load_without_blocks([block])
        assert trace.integrity.state == "gaps" and trace.integrity.missing_events == block.count
        counts = assert_exact_outside_gap(trace, sample, block.first, end - 1)
        verified = trace.verify()
        if states:
            states_hit += 1
            assert verified.states == len(sample.states) - len(states)
        else:
            exact, wrong, after_loss = exact + counts[0], wrong + counts[1], after_loss + verified.after_loss
            # A block of a few events may have none that changes memory.
            assert verified.resumed >= 1 or counts[1] == 0
    assert exact >= 20, "too few checkpoints outside the gaps"
    assert wrong >= 1 and after_loss >= 10, "the gaps have no effect"
    assert states_hit >= 1, "no state is partly in a gap"


def test_allocator_state_removes_block_whose_segment_and_free_were_lost(run_cuda_program, tmp_path: Path) -> None:
    """Lost are the allocation of a segment, and later the frees of the segment and of its block."""
    parts: list[list[list[Any]]] = [
        [["allocate", 700, 0, 0]],
        [["allocate", 3 * MIB, 0, 0]],
        [["allocate", 4 * MIB, 0, 0]],
        [["free", 1], ["free", 1], ["empty_cache"]],
        [["snapshot"]],
    ]
    operations = [operation for part in parts for operation in (["check"], ["flush"], *part, ["flush"])]
    run_cuda_program(RUN, json.dumps(operations), devices=2, PYTHONPATH=WITH_SUPPORT)
    sample = Sample(tmp_path)
    marks = [sample.mark_of[f"mark:check-{number}"] for number in range(len(parts))]
    blocks = [block for block in TraceFile(sample.path).blocks if block.type == EVENTS]
    lost = [(marks[number], marks[number + 1]) for number in (1, 3)]
    trace = sample.load_without_blocks(
        [block for block in blocks if any(a < block.first and block.first + block.count <= b for a, b in lost)]
    )
    kinds = trace._recorded.kind_counts

    assert kinds["alloc"] == 2 and kinds["segment_alloc"] == 1 and "segment_free" not in kinds
    assert trace.verify().after_loss == 1
    for checkpoint in sample.checkpoints[-2:]:
        assert state_differences(trace, checkpoint) == []


DROPPING = """
import gc, json, os
from pathlib import Path
import torch
import pytorch_alloctrace.recording.session
from cuda_programs import MIB
from replay_programs import Recording
gc.disable()
# On one processor and at batch priority the writer cannot keep up.
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
pytorch_alloctrace.recording.session.RING_EVENTS = 128  # the smallest that holds an allocator's state
recording = Recording(Path("t.0"), Path("expected"), list, on_full="drop", stacks="none")
for thread in os.listdir("/proc/self/task"):
    if int(thread) != os.getpid():
        os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))
def work():
    return [torch.empty(1000 * n % (3 * MIB) + 1, dtype=torch.uint8, device="cuda") for n in range(3000)]
held = work()
recording.session.flush()
recording.check()
del held
torch.cuda.empty_cache()
for round in range(6):
    held = [torch.empty(5_000_000 * n + 300, dtype=torch.uint8, device="cuda") for n in range(round + 1)]
    recording.session.flush()
    assert recording.session.snapshot()
    recording.session.flush()
    recording.check()
    held.pop()
    recording.session.flush()
    recording.check()
    recording.session.flush()
    if round % 2 == 0:
        held += work()
        recording.session.flush()
        recording.check()
        # A state that fits into the ring and has blocks whose allocs were dropped.
        held = held[::250]
        torch.cuda.empty_cache()
        recording.session.flush()
        assert recording.session.snapshot()
        recording.session.flush()
        recording.check()
    held.clear()
    torch.cuda.empty_cache()
recording.end()
"""


def count_differing_states(events: pd.DataFrame) -> int:
    """Return the number of allocator states whose live blocks differ from the allocs and frees before them."""
    live: set[int] = set()
    reported: set[int] | None = None
    differing = remaining = 0
    for kind, address, size, is_live in zip(
        events["kind"], events["address"], events["requested_bytes"], events["node_seq"] == BLOCK_ALLOCATED, strict=True
    ):
        if kind == "alloc":
            live.add(address)
        elif kind in ("free_requested", "free_completed"):
            live.discard(address)
        elif kind == "segment_free":  # also frees the blocks whose frees were dropped
            live = {block for block in live if not address <= block < address + size}
        elif kind == "allocator_state":
            reported, remaining = set(), size
        elif reported is not None and kind in ("state_segment", "state_block"):
            remaining -= 1
            if kind == "state_block" and is_live:
                reported.add(address)
        if reported is not None and remaining == 0:
            differing += reported != live
            live, reported = reported, None
    return differing


def test_replay_is_exact_after_next_state_when_events_were_dropped(run_cuda_program, tmp_path: Path) -> None:
    run_cuda_program(DROPPING, PYTHONPATH=WITH_SUPPORT)
    trace = alloctrace.load(tmp_path / "t.0")
    assert trace.integrity.lost > 100 and trace.integrity.state == "gaps"
    events = trace.events(columns=["seq", "kind", "address", "requested_bytes", "node_seq"])
    lost_at = events["seq"][events["kind"] == "lost"].to_numpy()
    states = events[events["kind"] == "allocator_state"]
    state_ends = (states["seq"] + states["requested_bytes"]).to_numpy()
    marks = trace.marks().set_index("name")["begin_seq"]
    checked = 0
    for checkpoint in read_expected(tmp_path / "expected"):
        mark = marks.get(checkpoint.at.removeprefix("mark:"))
        if mark is None:
            continue
        last_loss = max((seq for seq in lost_at if seq < mark), default=-1)
        if any(last_loss < end < mark for end in state_ends):
            assert state_differences(trace, checkpoint) == []
            checked += 1
    assert checked >= 10
    verified = trace.verify()
    assert verified.lost == trace.integrity.lost and not verified.ok
    assert verified.resumed >= count_differing_states(events)
    assert verified.states == verified.agreeing + verified.resumed
    assert verified.contradictions == 0


WITH_OTHER_THREAD = """
import threading, time, warnings, torch
import pytorch_alloctrace as alloctrace
warnings.simplefilter("ignore")
@torch.jit.script
def work(count: int) -> int:  # without the GIL, which a snapshot holds
    total = 0
    for n in range(count):
        total += torch.empty([n % 7 + 100]).numel()
    return total
work(100)
session = alloctrace.enable("t.alloctrace", stacks="none")
held = [torch.empty(3_000_000 + n, dtype=torch.uint8, device="cuda") for n in range(2000)]
stop = threading.Event()
rounds = 0
def work_on():
    global rounds
    while not stop.is_set():
        work(1000)
        rounds += 1
other = threading.Thread(target=work_on)
other.start()
for n in range(20):
    held.pop()
    while rounds < n // 5:  # a busy machine
        time.sleep(0.001)
    assert session.snapshot()
stop.set()
other.join()
alloctrace.disable()
"""


def test_states_agree_while_other_threads_write_events(run_cuda_program, tmp_path: Path) -> None:
    """CPU allocations and memory samples may be written within an allocator state."""
    run_cuda_program(WITH_OTHER_THREAD)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.lost == 0 and trace._recorded.kind_counts["alloc"] > 4000
    verified = trace.verify()
    assert verified.ok and verified.states == verified.agreeing == 21, (verified.states, verified.void_states)


WITHOUT_SEGMENTS = """
import json, sys, torch, pytorch_alloctrace as alloctrace
device = sys.argv[1]
alloctrace.enable("t.alloctrace", devices=(device,))
held, reported = [], []
for number in range(60):
    held.append(torch.empty(1000 * number + 1, dtype=torch.uint8, device=device))
    if number % 3 == 2:
        del held[number % 5]
    if number % 10 == 9:
        alloctrace.mark(f"check-{number}")
        reported.append([f"mark:check-{number}", [[one.data_ptr(), one.numel()] for one in held]])
print(json.dumps(reported))
alloctrace.disable()
"""


@pytest.mark.parametrize(("device", "setting"), [("cpu", ""), ("cuda", "backend:cudaMallocAsync")])
def test_allocator_without_segments_has_live_allocations_as_blocks(
    run_cuda_program: Callable[..., Any], tmp_path: Path, device: str, setting: str
) -> None:
    process = run_cuda_program(WITHOUT_SEGMENTS, device, PYTORCH_ALLOC_CONF=setting)
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    reported = json.loads(process.stdout.splitlines()[-1])
    assert len(reported) == 6
    for at, tensors in reported:
        assert trace.segments(at=at).empty
        blocks = trace.blocks(at=at)
        assert sorted(map(list, zip(blocks["address"], blocks["requested_bytes"], strict=True))) == sorted(tensors)
        assert set(blocks["device"]) == {"cpu" if device == "cpu" else "cuda:0"}
        assert set(blocks["state"]) == {"active_allocated"}
        assert (blocks["block_bytes"] == blocks["requested_bytes"]).all() and (blocks["segment"] == 0).all()
    [timeline] = trace.timeline(points=1, device=device).to_dict("records")
    assert pd.isna(timeline["reserved_bytes"]) and pd.isna(timeline["largest_free_bytes"])
    assert timeline["allocated_bytes_max"] == timeline["requested_bytes_max"] > 0
    verified = trace.verify()
    assert verified.ok and verified.states == 0 and verified.contradictions == 0
