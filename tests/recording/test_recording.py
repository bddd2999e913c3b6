"""That the trace holds what happened: all of it, in order, whatever threads do."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from native_library import build_library
from running import ROOT

import pytorch_alloctrace as alloctrace


def events_of(trace: alloctrace.Trace) -> pd.DataFrame:
    """What the program did; what the system says of memory is sampled at the same time, ten times a second."""
    events = trace.events()
    return events[events["kind"] != "memory"]


def counts(trace: alloctrace.Trace) -> dict[str, int]:
    return {kind: count for kind, count in trace.kind_counts.items() if kind != "memory"}


@pytest.mark.parametrize("each", [25_000, pytest.param(625_000, marks=pytest.mark.slow("recording"))])
def test_every_event_of_four_threads(run_program, tmp_path: Path, each: int) -> None:
    run_program(
        """
        import sys, threading, torch, pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.recording import session
        session.WAIT_NS = 60 * 10**9  # a busy machine may keep the writer waiting for longer than a hook waits for it
        alloctrace.enable("t.alloctrace")
        def work(seed):
            # Lists of tensors handed on between the threads: freed on another thread than they were made on.
            held = shared[seed]
            for i in range(int(sys.argv[1])):
                held.append(torch.empty(1 + (i * 7919 + seed) % 3000, dtype=torch.uint8))
                if len(held) > 20:
                    shared[(seed + 1) % 4].append(held.pop(0))
                    while len(held) > 20:
                        held.pop(0)
        shared = [[] for _ in range(4)]
        threads = [threading.Thread(target=work, args=(seed,), name=f"worker-{seed}") for seed in range(4)]
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
    assert counts(trace) == {"alloc": 4 * each, "free_completed": 4 * each}
    assert trace.unmatched_frees == 0 and trace.missed_frees == 0
    assert len(trace.live()) == 0
    read = 0
    per_thread: Counter[int] = Counter()
    for events in trace.iter_events(500_000, columns=["seq", "kind", "thread"]):
        assert (np.diff(events["seq"].to_numpy()) == 1).all() and events["seq"].iloc[0] == read
        read += len(events)
        per_thread.update(events["thread"][events["kind"] == "alloc"])
    assert read - trace.kind_counts["memory"] == 8 * each
    names = trace.threads.set_index("thread")["name"]
    assert {names[thread]: count for thread, count in per_thread.items()} == {f"worker-{n}": each for n in range(4)}


def test_the_sequence_equals_the_profilers(run_program, tmp_path: Path) -> None:
    """Oracle: torch.profiler's own memory events of the same run, from another hook (the allocator's reporting)."""
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
        json.dump([(pointer, size) for _, pointer, size in rows], open("oracle.json", "w"))
        """
    )
    rows = json.loads((tmp_path / "oracle.json").read_text())
    oracle = [(pointer, size) for pointer, size in rows if pointer]  # without empty allocations, which are not events
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    events = trace.events(since="mark:begin", until="mark:end")
    events = events[events["kind"].isin(["alloc", "free_completed"])]
    ours = [
        (address, size if kind == "alloc" else -size)
        for kind, address, size in zip(events["kind"], events["address"], events["nbytes"], strict=True)
    ]
    assert len(ours) > 1000
    # The profiler sees a little more around the marks (its own context is wider): ours is one run inside its sequence.
    start = oracle.index(ours[0])
    assert oracle[start : start + len(ours)] == ours
    assert len(oracle) - len(ours) < 5


def test_blocks_from_before_and_after(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        before = torch.empty(1000)
        alloctrace.enable("one.alloctrace")
        del before                        # was alive before: not ours, not an error
        during = torch.empty(2000)
        alloctrace.disable()
        between = torch.empty(10)
        alloctrace.enable("two.alloctrace")
        del during                        # made in the first recording, freed in the second
        torch.empty(0)
        after = torch.empty(3000)
        alloctrace.disable()
        del after
        torch.empty(5)
        """
    )
    one, two = (alloctrace.load(tmp_path / name) for name in ("one.alloctrace", "two.alloctrace"))
    assert list(events_of(one)["kind"]) == ["alloc"] and one.unmatched_frees == 0
    assert list(events_of(two)["kind"]) == ["free_completed", "alloc"]
    assert two.unmatched_frees == 1 and two.missed_frees == 0
    assert two.integrity.empty_allocations == 1 and two.integrity.state == "complete"


def test_allocation_without_the_gil_while_another_thread_holds_it(run_program, tmp_path: Path) -> None:
    """The main thread holds the GIL in one long C call and waits in it for native threads that allocate. A hook that
    took the GIL would hang for ever: the program's time limit is the watchdog."""
    build_library(ROOT / "tools/bench/native_threads.cpp", tmp_path / "native.so")
    run_program(
        """
        import ctypes, torch, pytorch_alloctrace as alloctrace
        native = ctypes.PyDLL("./native.so")      # PyDLL: the GIL stays held during the call
        native.allocate_in_threads.restype = ctypes.c_double
        alloctrace.enable("t.alloctrace")
        native.allocate_in_threads(4, 100_000, ctypes.byref(ctypes.c_double()))
        alloctrace.disable()
        """,
        timeout=600,
    )
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert counts(trace) == {"alloc": 400_000, "free_completed": 400_000} and trace.integrity.lost == 0


def test_autograd_fields_tie_backward_to_forward(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, grad): return grad * 2
        weight = torch.randn(64, 64, requires_grad=True)
        with alloctrace.enable("before.alloctrace"):  # in which these types have other numbers
            Twice.apply(weight.sin() @ weight).sum().backward()
        alloctrace.enable("t.alloctrace")
        with alloctrace.region("forward"):
            product = torch.randn(64, 64) @ weight
            doubled = Twice.apply(product)
            loss = doubled.sum()
        loss.backward()
        alloctrace.disable()
        """
    )
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    events = trace.events(
        columns=["seq", "kind", "nbytes", "stack_id", "thread", "autograd_seq", "node_seq", "node_type", "node_thread"]
    )
    backward = events[(events["kind"] == "alloc") & (events["node_type"] != "")]
    types = set(backward["node_type"])
    assert {"torch::autograd::generated::MmBackward0", "TwiceBackward"} <= types
    # The allocation of backward carries the number of its node; the op of forward that made that node allocated with
    # the next number on the thread that the node names.
    threads = trace.threads.set_index("autograd_id")["thread"]
    row = backward[backward["node_type"].str.contains("MmBackward0")].iloc[0]
    made = events[
        (events["kind"] == "alloc")
        & (events["node_type"] == "")
        & (events["autograd_seq"] == row["node_seq"] + 1)
        & (events["thread"] == threads[row["node_thread"]])
    ].iloc[0]
    frame = next(frame for frame in trace.frames(made["stack_id"]) if frame.filename.endswith("program.py"))
    assert frame.source is not None and "@ weight" in frame.source


def test_stacks_can_be_left_out_and_sources_too(run_program, tmp_path: Path) -> None:
    run_program(
        """
        import torch, pytorch_alloctrace as alloctrace
        def plain(): return torch.empty(10)
        with alloctrace.enable("none.alloctrace", stacks="none"): plain()
        with alloctrace.enable("quiet.alloctrace", sources=False): plain()
        with alloctrace.enable("full.alloctrace"): plain()
        exec(compile("def cell():\\n    return torch.empty(20)  # in a cell", "<cell 1>", "exec"))
        import linecache
        linecache.cache["<cell 1>"] = (1, None, ["def cell():\\n", "    return torch.empty(20)  # in a cell\\n"],
        "<cell 1>")
        with alloctrace.enable("cell.alloctrace"): cell()
        """
    )
    none, quiet, full, cell = (
        alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("none", "quiet", "full", "cell")
    )
    assert (none.events()["stack_id"] == 0).all()
    frame = quiet.frames(events_of(quiet)["stack_id"].iloc[0])[0]
    assert (frame.function, frame.source) == ("plain", None)
    frame = full.frames(events_of(full)["stack_id"].iloc[0])[0]
    assert frame.source == "def plain(): return torch.empty(10)" and frame.line == 3
    frame = cell.frames(events_of(cell)["stack_id"].iloc[0])[0]
    assert frame.filename == "<cell 1>" and frame.source == "    return torch.empty(20)  # in a cell"
    assert cell.sites()["user"].iloc[0]


def test_the_former_allocator_is_back_unless_another_took_its_place(run_program, tmp_path: Path) -> None:
    source = tmp_path / "foreign.cpp"
    source.write_text(
        """
        #include <c10/core/Allocator.h>
        #include <c10/core/CPUAllocator.h>
        struct Foreign final : c10::Allocator {
          c10::Allocator* upstream;
          c10::DataPtr allocate(size_t n) override { return upstream->allocate(n); }
          c10::DeleterFnPtr raw_deleter() const override { return upstream->raw_deleter(); }
          void copy_data(void* d, const void* s, size_t n) const override { upstream->copy_data(d, s, n); }
        };
        static Foreign foreign;
        extern "C" void* current() { return c10::GetAllocator(c10::kCPU); }
        extern "C" void put_in_front_of(c10::Allocator* upstream) {
          foreign.upstream = upstream;
          c10::SetCPUAllocator(&foreign, 255);
        }
        """
    )
    build_library(source, tmp_path / "foreign.so")
    run_program(
        """
        import ctypes, torch, pytorch_alloctrace as alloctrace
        foreign = ctypes.CDLL("./foreign.so")
        foreign.current.restype = ctypes.c_void_p
        foreign.put_in_front_of.argtypes = [ctypes.c_void_p]
        first = foreign.current()
        with alloctrace.enable("one.alloctrace"):
            assert foreign.current() != first
            torch.empty(10)
        assert foreign.current() == first
        with alloctrace.enable("two.alloctrace"):
            foreign.put_in_front_of(foreign.current())
            theirs = foreign.current()
            torch.empty(10)
        assert foreign.current() == theirs, "another's allocator was removed"
        held = torch.empty(10)
        with alloctrace.enable("three.alloctrace"):
            assert foreign.current() == theirs
            torch.empty(10)
            held = None
        foreign.put_in_front_of(first)  # without ours
        with alloctrace.enable("four.alloctrace"):
            assert foreign.current() != theirs
            torch.empty(10)
        """
    )
    for name in ("one", "two", "three", "four"):
        trace = alloctrace.load(tmp_path / f"{name}.alloctrace")
        assert trace.kind_counts["alloc"] == 1, name


def test_no_signal_of_the_program_is_delivered_to_a_thread_of_ours(run_program) -> None:
    """A program that blocks a signal, to fetch it later, must not be killed because one of our threads takes it."""
    run_program(
        """
        import os, signal, time, torch, pytorch_alloctrace as alloctrace

        def threads():
            return {thread: open(f"/proc/self/task/{thread}/status").read() for thread in os.listdir("/proc/self/task")}

        before = threads()
        alloctrace.enable("t.alloctrace")
        time.sleep(0.3)
        ours = [status for thread, status in threads().items() if thread not in before]
        assert len(ours) >= 3, ours
        for status in ours:
            fields = dict(line.split(":", 1) for line in status.splitlines())
            assert fields["Name"].strip() == "alloctrace", status
            catchable = {*signal.valid_signals()} - {signal.SIGKILL, signal.SIGSTOP}
            blocked = int(fields["SigBlk"], 16)
            assert all(blocked >> (number - 1) & 1 for number in catchable), status
        """
    )
