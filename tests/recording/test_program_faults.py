"""Recordings of programs that crash, fork, re-enter hooks, or have unusual stacks, names and threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import core_probe
import pytest
from command_line import run_command
from format_reader import TraceFile
from native_library import build_library
from shared_recordings import record_once

import pytorch_alloctrace as alloctrace


def sizes(trace: alloctrace.Trace, kind: str = "alloc") -> list[int]:
    """Return the requested bytes of the events of a kind, in order."""
    return [int(size) for size in trace.events(kinds=[kind])["requested_bytes"]]


NATIVE = """
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <thread>
#include <vector>

extern "C" void allocate(long n) { c10::GetAllocator(c10::kCPU)->allocate(n); }

// Constructed before or after the recorder's thread-local data, and so destroyed after or before that data.
struct Allocates { ~Allocates() { c10::GetAllocator(c10::kCPU)->allocate(4321); } bool is_used = false; };
thread_local Allocates first;
thread_local Allocates second;
extern "C" void allocate_in_destructors(int threads) {
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) running.emplace_back([i] {
    if (i % 2) first.is_used = true;
    if (i % 3) c10::GetAllocator(c10::kCPU)->allocate(64);
    second.is_used = true;
  });
  for (auto& thread : running) thread.join();
}

struct Nested final : c10::Allocator {
  c10::Allocator* upstream; int depth = 0;
  c10::DataPtr allocate(size_t n) override {
    if (n == 6000 && depth == 0) { ++depth; c10::GetAllocator(c10::kCPU)->allocate(60); --depth; }
    return upstream->allocate(n);
  }
  c10::DeleterFnPtr raw_deleter() const override { return upstream->raw_deleter(); }
  void copy_data(void* d, const void* s, size_t n) const override { upstream->copy_data(d, s, n); }
};
static Nested nested;
static void free_own(void* block) { free(block); }
struct Own final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* const block = malloc(n);
    return {block, block, &free_own, c10::Device(c10::kCPU)};
  }
  void copy_data(void* d, const void* s, size_t n) const override { memcpy(d, s, n); }
};
static Own own;
extern "C" void* own_allocator() { return &own; }
extern "C" void set_own() { c10::SetCPUAllocator(&own, 255); }
extern "C" void* current() { return c10::GetAllocator(c10::kCPU); }
extern "C" void install_nested_over(c10::Allocator* upstream) {
  nested.upstream = upstream;
  c10::SetCPUAllocator(&nested, 255);
}
extern "C" void install_nested() { install_nested_over(c10::GetAllocator(c10::kCPU)); }
"""


@pytest.fixture
def native(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "native.cpp").write_text(NATIVE)
        build_library(folder / "native.cpp", folder / "native.so")

    (tmp_path / "native.so").symlink_to(record_once("native", build) / "native.so")


# An exit from C runs the destructors of all libraries, but no exit handler of Python.
@pytest.mark.parametrize(
    ("call", "status"),
    [("ctypes.string_at(0)", -signal.SIGSEGV), ("ctypes.CDLL(None).exit(3)", 3)],
    ids=["segmentation fault", "exit of C"],
)
def test_committed_events_are_complete_after_a_crash_or_an_exit_from_c(
    run_program, tmp_path: Path, call: str, status: int
) -> None:
    process = run_program(
        f"""
        import ctypes, resource, torch
        import pytorch_alloctrace as alloctrace
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        alloctrace.enable("t.alloctrace")
        tensors = [torch.empty(size, dtype=torch.uint8) for size in range(1, 2001)]
        {call}
        """,
        check=False,
        fresh=status == 3,
    )

    assert process.returncode == status, process.stderr
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert sizes(trace) == list(range(1, 2001)) and len(trace.live()) == 2000
    assert trace.integrity.state == "complete" and not trace.integrity.ended


FORKS = """
import os, threading, torch
import pytorch_alloctrace as alloctrace
alloctrace.enable("t.alloctrace")
parent_tensors = [torch.empty(999, dtype=torch.uint8) for _ in range(100)]
stop = threading.Event()

def allocate(number):
    while not stop.is_set():
        torch.empty(1000 + number, dtype=torch.uint8)

threads = [threading.Thread(target=allocate, args=(number,)) for number in range(6)]
for thread in threads: thread.start()
for number in range(40):
    child = os.fork()
    if child == 0:
        # A lock that a hook of another thread held at the fork must not block the child.
        assert not alloctrace.is_enabled()
        tensors = [torch.empty(77777, dtype=torch.uint8) for _ in range(100)]
        parent_tensors.clear()
        alloctrace.step()
        alloctrace.mark("child")
        if number % 10 == 0:
            alloctrace.enable(f"child-{number}.alloctrace")
            tensor = torch.empty(55555, dtype=torch.uint8)
            alloctrace.disable()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
alloctrace.disable()
"""


TOGGLES = """
import os, signal, threading, torch, pytorch_alloctrace as alloctrace
torch.empty(100)  # constructs torch's static variables: a fork during their construction blocks the child for ever
stop = threading.Event()
def toggle():
    while not stop.is_set():
        alloctrace.enable("t.alloctrace", overwrite=True)
        torch.empty(10)
        alloctrace.disable()
thread = threading.Thread(target=toggle)
thread.start()
statuses = []
for number in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        tensors = [torch.empty(100) for _ in range(100)]
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
stop.set()
thread.join()
assert not any(statuses), statuses
"""


def test_forked_children_exit_while_another_thread_toggles_sessions(run_program) -> None:  # type: ignore[no-untyped-def]
    """Guard against locks of a session that are held across the fork while its memory is freed."""
    run_program(TOGGLES, timeout=600)


def test_traces_are_intact_after_forks_while_threads_are_in_the_hook(run_program, tmp_path: Path) -> None:
    run_program(FORKS, timeout=600)

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    verification = trace.verify()
    assert trace.integrity.ended and verification.missed_frees == verification.unmatched_frees == 0
    assert trace.marks().empty and trace.steps().empty and trace.live()["requested_bytes"].tolist() == [999] * 100
    assert set(sizes(trace)) <= {*range(999, 1006)} and trace.verify().ok == (trace.integrity.lost == 0)
    for number in range(0, 40, 10):
        assert sizes(alloctrace.load(tmp_path / f"child-{number}.alloctrace")) == [55555]


def test_events_are_complete_for_short_threads_and_their_destructors(run_program, native: None, tmp_path: Path) -> None:
    """Hold the GIL while native threads run: a hook that acquires the GIL would hang until the time limit."""
    run_program(
        """
        import ctypes, threading, torch, pytorch_alloctrace as alloctrace
        native = ctypes.PyDLL("./native.so")  # PyDLL: the call does not release the GIL
        with alloctrace.enable("once.alloctrace"):
            for number in range(0, 1000, 20):
                threads = [threading.Thread(target=torch.empty, args=(number + offset,), kwargs={"dtype": torch.uint8})
                           for offset in range(1, 21)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
        with alloctrace.enable("destructors.alloctrace"):
            native.allocate_in_destructors(60)
        """
    )

    once, destructors = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("once", "destructors"))
    assert sorted(sizes(once)) == list(range(1, 1001)) and once.live().empty
    assert once.events(kinds=["alloc"])["thread"].nunique() == 1000 and once.integrity.state == "complete"
    # The thread-local objects of one library are constructed together, at the first use of any of them.
    assert sizes(destructors).count(4321) >= 60 and sizes(destructors).count(64) == 40 and destructors.live().empty
    verification = destructors.verify()
    assert verification.missed_frees == verification.unmatched_frees == 0 and verification.integrity == "complete"
    assert (destructors.events(kinds=["alloc"])["stack_id"] == 0).all(), "threads without Python"


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:  # before 3.13
    import _xxsubinterpreters as interpreters
import torch, pytorch_alloctrace as alloctrace
session = alloctrace.enable("t.alloctrace")
# Only interpreters of this kind may start threads.
is_new = interpreters.__name__ == "_interpreters"
other = interpreters.create("legacy") if is_new else interpreters.create(isolated=False)
interpreters.run_string(other, '''if True:
    import ctypes, threading
    native = ctypes.CDLL("./native.so")
    def in_it(): native.allocate(3333)
    threads = [threading.Thread(target=in_it) for _ in range(5)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
''')
interpreters.destroy(other)
tensor = torch.empty(1111, dtype=torch.uint8)
alloctrace.disable()
with alloctrace.enable("u.alloctrace"):
    torch.empty(10)
"""


def test_missing_stacks_of_subinterpreters_are_reported_once(run_program, native: None, tmp_path: Path) -> None:
    process = run_program(SUBINTERPRETER)

    assert process.stderr.count("no stacks of allocations in subinterpreters") == 1, process.stderr
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    events = trace.events(kinds=["alloc"])
    native_events = events[events["requested_bytes"] == 3333]
    assert len(native_events) == 5 and (native_events["stack_id"] == 0).all()
    assert trace.integrity.unknown_stacks >= 5 and "without a complete stack" in str(trace.integrity)
    assert (events[events["requested_bytes"] == 1111]["stack_id"] > 0).all()


def test_toggling_a_session_loses_no_events_of_eight_threads(run_program, tmp_path: Path) -> None:
    """Check also that the memory of the host does not grow after the first rounds."""
    rounds = 300 if os.environ.get("ALLOCTRACE_TEST_SCALE") == "full" else 30

    process = run_program(
        """
        import sys, threading, torch, pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.recording import object_scans
        stop = threading.Event()
        def allocate(number):
            tensors = []
            while not stop.is_set():
                tensors.append(torch.empty(100 + number, dtype=torch.uint8))
                if len(tensors) > 50: tensors.clear()
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        threads = [threading.Thread(target=allocate, args=(number,)) for number in range(8)]
        for thread in threads: thread.start()
        rounds, sizes = int(sys.argv[1]), []
        for number in range(rounds):
            # A scan runs Python, which gets one turn in nine here: a scan in each round would take minutes.
            object_scans.MAX_FINAL_SCAN_S = 0.0 if number % 8 else 0.5
            alloctrace.enable(f"{number % 4}.alloctrace", overwrite=True)
            alloctrace.disable()
            sizes.append(resident())
        stop.set()
        for thread in threads: thread.join()
        # The minimum of several rounds: the heap varies by some MiB.
        third = rounds // 3
        print(min(sizes[-third:]) - min(sizes[third:-third]))
        """,
        str(rounds),
        timeout=900,
        fresh=True,
        MALLOC_ARENA_MAX="1",  # each of the heaps of eight threads may keep 10 MiB of an object scan
    )

    assert int(process.stdout) < 8 << 20
    for number in range(4):
        trace = alloctrace.load(tmp_path / f"{number}.alloctrace")
        assert trace.integrity.ended and trace.integrity.corrupt_blocks == 0 and trace.integrity.missing_events == 0
        assert trace.verify().missed_frees == 0 and set(sizes(trace)) <= {*range(100, 108)}


def test_many_functions_many_stacks_and_deep_stacks_are_recorded(run_program, tmp_path: Path) -> None:
    """Record 3,000 functions that reuse addresses, 25,000 stacks, and stacks of 10,000 frames (4,096 are stored)."""
    process = run_program(
        """
        import sys, threading, torch, pytorch_alloctrace as alloctrace
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        with alloctrace.enable("unique.alloctrace"):
            for number in range(3000):
                names = {"torch": torch, "number": number}
                exec(f"def unique_{number}(): return torch.empty(number, dtype=torch.uint8)\\nunique_{number}()", names)
                if number == 1000: before = resident()
        print(resident() - before)

        lines = "\\n".join(f"    if n == {number}: return torch.empty(8, dtype=torch.uint8)" for number in range(400))
        names = {"torch": torch}
        exec(compile(f"def leaf(n):\\n{lines}\\ndef call(a, b):\\n" + "\\n".join(
            f"    if a == {number}: return leaf(b)" for number in range(250)), "many.py", "exec"), names)
        with alloctrace.enable("many.alloctrace"):
            for a in range(250):
                for b in range(0, 400, 4): names["call"](a, b)

        sys.setrecursionlimit(20_000)
        threading.stack_size(512 << 20)
        def down(levels):
            return torch.empty(levels + 1, dtype=torch.uint8) if levels == 0 else down(levels - 1)
        def record_deep_stacks():
            with alloctrace.enable("deep.alloctrace"):
                for _ in range(50): down(10_000)
        thread = threading.Thread(target=record_deep_stacks)
        thread.start(); thread.join()
        """
    )

    assert int(process.stdout) < 64 << 20
    unique, many, deep = (alloctrace.load(tmp_path / f"{name}.alloctrace") for name in ("unique", "many", "deep"))
    events = unique.events(kinds=["alloc"])
    assert len(events) == 2999  # the first function's tensor is empty
    for size, stack in zip(events["requested_bytes"].tolist()[::37], events["stack_id"].tolist()[::37], strict=True):
        assert unique.frames(stack)[0].function == f"unique_{size}"
    # Events may lack a stack, but none is lost.
    events = many.events(kinds=["alloc"])
    assert len(events) == 25_000 and many.integrity.state == "complete"
    with_stack = events[events["stack_id"] > 0]
    assert len(events) - len(with_stack) <= many.integrity.unknown_stacks
    assert with_stack["stack_id"].nunique() == len(with_stack)
    events = deep.events(kinds=["alloc"])
    assert len(events) == 50 and events["stack_id"].nunique() == 1
    frames = deep.frames(int(events["stack_id"].iloc[0]))
    assert len(frames) == 4096 and {frame.function for frame in frames} == {"down"}
    assert deep.integrity.state == "complete" and deep.verify().ok


NAMES = [
    "one\ntwo.py",
    "'\"`$(id).py",
    "/" + "x" * 4090 + ".py",
    os.fsdecode(b"\xff\xfe-caf\xe9.py"),
    "\x1b[31mred\x1b[0m.py",
    "<script>alert(1)</script>[bold].py",
    "",
]


def test_odd_file_names_are_unchanged_and_print_no_control_characters(run_program, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening a pipe for its source lines would block forever
    names = [*NAMES, str(pipe)]

    run_program(
        f"""
        import torch, pytorch_alloctrace as alloctrace
        with alloctrace.enable("t.alloctrace"):
            tensors = []
            for number, filename in enumerate({names!a}):
                names = {{"torch": torch, "size": 1000 + number}}
                exec(compile("def make(): return torch.empty(size, dtype=torch.uint8)", filename, "exec"), names)
                tensors += [names["make"]() for _ in range(3)]
        """
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    live = trace.live().sort_values("requested_bytes")
    frames = [trace.frames(int(stack))[0] for stack in live["stack_id"][::3]]
    assert {frame.function for frame in frames} == {"make"}
    expected = ["".join("?" if "\ud800" <= letter <= "\udfff" else letter for letter in name) for name in names]
    assert [frame.filename for frame in frames] == expected and frames[-1].source is None
    for command in ("diagnose", "sites", "leaks", "blocks"):
        process = run_command(tmp_path, [command, "t.alloctrace", *(["--csv"] if command == "blocks" else [])])
        assert process.returncode in (0, 1) and "\x1b" not in process.stdout + process.stderr, process.stderr


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the counter of other processors is always steady")
def test_times_are_monotonic_when_the_clock_source_is_not_the_counter(run_program, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("hpet\n")

    run_program(
        """
        import time, torch, pytorch_alloctrace as alloctrace
        with alloctrace.enable("t.alloctrace"):
            for number in range(5):
                torch.empty(1000 + number, dtype=torch.uint8)
                time.sleep(0.01)
        """,
        LD_PRELOAD=str(core_probe.build_shim("faulty_files.c")),
        CLOCK_SOURCE=str(tmp_path / "source"),
    )

    file = TraceFile(tmp_path / "t.alloctrace")
    for anchor in (file.first, *(block.end for block in file.blocks)):
        assert abs(anchor.counter - anchor.monotonic) < 10_000_000
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    times = trace.events(kinds=["alloc"])["time_ns"].to_numpy()
    assert len(times) == 5 and (times[1:] - times[:-1] > 9_000_000).all()


def test_events_are_complete_when_hooks_are_reentered(run_program, native: None, tmp_path: Path) -> None:
    """Allocate in a signal handler, in destructors during collections, and in the allocator that the hook wraps."""
    run_program(
        """
        import ctypes, gc, signal, torch, pytorch_alloctrace as alloctrace
        ctypes.CDLL("./native.so").install_nested()   # the recorder's allocator wraps this allocator
        alloctrace.enable("t.alloctrace")
        class Circle:
            def __init__(self): self.me, self.tensor = self, torch.empty(70, dtype=torch.uint8)
            def __del__(self): torch.empty(71, dtype=torch.uint8)
        def handler(*_): torch.empty(80, dtype=torch.uint8)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for number in range(3000):
            torch.empty(6000, dtype=torch.uint8)
            Circle()
            if number % 100 == 0: gc.collect()
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
        alloctrace.disable()
        """
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    nbytes = sizes(trace)
    assert [nbytes.count(size) for size in (6000, 60, 70, 71)] == [3000] * 4 and nbytes.count(80) > 0
    verification = trace.verify()
    assert trace.live().empty and verification.missed_frees == verification.unmatched_frees == 0
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0


def test_former_allocator_is_restored_unless_another_replaced_ours(run_program, native: None, tmp_path: Path) -> None:
    run_program(
        """
        import ctypes, torch, pytorch_alloctrace as alloctrace
        native = ctypes.CDLL("./native.so")
        native.current.restype = ctypes.c_void_p
        native.install_nested_over.argtypes = [ctypes.c_void_p]
        first = native.current()
        with alloctrace.enable("one.alloctrace"):
            assert native.current() == first  # the default allocator is recorded in place
            torch.empty(10)
        with alloctrace.enable("two.alloctrace"):
            native.install_nested_over(native.current())
            other = native.current()
            torch.empty(10)
        assert native.current() == other, "the other allocator was removed"
        tensor = torch.empty(10)
        with alloctrace.enable("three.alloctrace"):
            assert native.current() != other
            torch.empty(10)
            tensor = None
        assert native.current() == other
        native.install_nested_over(first)
        with alloctrace.enable("four.alloctrace"):
            assert native.current() != other
            torch.empty(10)
        """
    )
    for name in ("one", "two", "three", "four"):
        trace = alloctrace.load(tmp_path / f"{name}.alloctrace")
        assert trace._recorded.kind_counts["alloc"] == 1, name


def test_blocks_of_an_allocator_with_memory_of_its_own_are_recorded_once(
    run_program, native: None, tmp_path: Path
) -> None:
    run_program(
        """
        import ctypes, torch, pytorch_alloctrace as alloctrace
        native = ctypes.CDLL("./native.so")
        native.current.restype = native.own_allocator.restype = ctypes.c_void_p
        native.install_nested_over.argtypes = [ctypes.c_void_p]
        native.set_own()
        with alloctrace.enable("one.alloctrace"):
            torch.empty(10)
        assert native.current() == native.own_allocator()
        with alloctrace.enable("two.alloctrace"):
            torch.empty(10)
            native.install_nested_over(native.current())  # in front of the recorder's, which stays behind it
        with alloctrace.enable("three.alloctrace"):
            torch.empty(10)
        native.install_nested_over(native.own_allocator())  # without the recorder's
        with alloctrace.enable("four.alloctrace"):
            torch.empty(10)
        """
    )
    for name in ("one", "two", "three", "four"):
        trace = alloctrace.load(tmp_path / f"{name}.alloctrace")
        assert trace._recorded.kind_counts["alloc"] == trace._recorded.kind_counts["free_completed"] == 1, name
