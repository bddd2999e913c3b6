"""Completeness and order of recorded events, and their source lines."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import pytorch_alloctrace as alloctrace


@pytest.mark.parametrize("each", [25_000, pytest.param(625_000, marks=pytest.mark.slow("recording"))])
def test_events_of_four_threads_are_complete_and_ordered(run_program, tmp_path: Path, each: int) -> None:
    run_program(
        """
        import sys, threading, torch, pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.recording import session
        session.WAIT_NS = 60 * 10**9  # on a busy machine the writer may be late
        alloctrace.enable("t.alloctrace")
        def allocate(seed):
            # Tensors move between the threads' lists: many are freed on another thread than they were allocated on.
            tensors = shared[seed]
            for i in range(int(sys.argv[1])):
                tensors.append(torch.empty(1 + (i * 7919 + seed) % 3000, dtype=torch.uint8))
                if len(tensors) > 20:
                    shared[(seed + 1) % 4].append(tensors.pop(0))
                    while len(tensors) > 20:
                        tensors.pop(0)
        shared = [[] for _ in range(4)]
        threads = [threading.Thread(target=allocate, args=(seed,), name=f"worker-{seed}") for seed in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        shared.clear()
        alloctrace.disable()
        """,
        str(each),
        timeout=900,
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0
    # The number of memory samples depends on the duration.
    counts = trace._recorded.kind_counts
    assert counts["alloc"] == counts["free_completed"] == 4 * each
    assert counts.keys() <= {"alloc", "free_completed", "memory", "garbage_collection"}
    verification = trace.verify()
    assert verification.unmatched_frees == verification.missed_frees == 0
    assert len(trace.live()) == 0
    event_count = 0
    per_thread: Counter[int] = Counter()
    for events in trace.events(chunk=500_000, columns=["seq", "kind", "thread"]):
        assert (np.diff(events["seq"].to_numpy()) == 1).all() and events["seq"].iloc[0] == event_count
        event_count += len(events)
        per_thread.update(events["thread"][events["kind"] == "alloc"])
    assert event_count == sum(counts.values())
    names = trace.threads().set_index("thread")["name"]
    assert {names[thread]: count for thread, count in per_thread.items()} == {f"worker-{n}": each for n in range(4)}


def test_event_sequence_equals_that_of_torch_profiler(run_program, tmp_path: Path) -> None:
    """Compare with torch.profiler, whose memory events come from the allocator's own reports."""
    run_program(
        """
        import json, torch, pytorch_alloctrace as alloctrace
        from torch.profiler import profile, ProfilerActivity
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        def train(steps):
            for _ in range(steps):
                loss = model(torch.randn(32, 64)).square().mean()
                loss.backward(); optimizer.step(); optimizer.zero_grad()
        train(1)
        alloctrace.enable("t.alloctrace")
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            alloctrace.mark("begin")
            train(30)
            alloctrace.mark("end")
        alloctrace.disable()
        def memory(tree):
            for event in tree:
                if event.tag.name == "Allocation":
                    fields = event.extra_fields
                    yield event.start_time_ns, fields.ptr, fields.alloc_size
                yield from memory(event.children)
        rows = sorted(memory(profiler.profiler.kineto_results.experimental_event_tree()))
        json.dump([(pointer, size) for _, pointer, size in rows], open("profiled.json", "w"))
        """
    )

    rows = json.loads((tmp_path / "profiled.json").read_text())
    profiled = [(pointer, size) for pointer, size in rows if pointer]  # without empty allocations, which are not events
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    events = trace.events(since="mark:begin", until="mark:end")
    events = events[events["kind"].isin(["alloc", "free_completed"])]
    recorded = [
        (address, size if kind == "alloc" else -size)
        for kind, address, size in zip(events["kind"], events["address"], events["requested_bytes"], strict=True)
    ]
    assert len(recorded) > 1000
    # The profiler's context is wider than the marks, so its sequence has a few more events at both ends.
    start = profiled.index(recorded[0])
    assert profiled[start : start + len(recorded)] == recorded
    assert len(profiled) - len(recorded) < 5


def test_source_lines_are_optional_and_include_cells(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        def layer(): return torch.empty(10)
        with alloctrace.enable("quiet.alloctrace", sources=False): layer()
        exec(compile("def cell():\\n    return torch.empty(20)  # in a cell", "<cell 1>", "exec"))
        import linecache
        linecache.cache["<cell 1>"] = (1, None, ["def cell():\\n", "    return torch.empty(20)  # in a cell\\n"],
        "<cell 1>")
        with alloctrace.enable("cell.alloctrace"): cell()
        """
    )

    quiet, cell = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("quiet", "cell"))
    frame, cell_frame = (trace.frames(trace.events(kinds=["alloc"])["stack_id"].iloc[0])[0] for trace in (quiet, cell))
    assert (frame.function, frame.source) == ("layer", None)
    assert (cell_frame.filename, cell_frame.source) == ("<cell 1>", "    return torch.empty(20)  # in a cell")
    assert cell.usage()["user"].iloc[0]
