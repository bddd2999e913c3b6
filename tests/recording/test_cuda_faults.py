"""Traces of CUDA programs that fail, contend for locks, replace allocators or are killed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from native_library import build_library, contract_library
from running import ending_without_scan, has_nvidia_gpu, needs_cuda_build
from test_kill import assert_killed_recordings_are_complete

import pytorch_alloctrace as alloctrace

pytestmark = needs_cuda_build


def assert_events_are_consistent(trace: alloctrace.Trace) -> None:
    """Assert that every block and segment is allocated before it is freed, and freed once."""
    verification = trace.verify()
    assert verification.contradictions == 0 and verification.unmatched_frees == 0, verification


OOM_PROGRAM = """
import json, os, re, sys, threading, torch
traced = sys.argv[1] == "traced"
if traced:
    import pytorch_alloctrace as alloctrace
    session = alloctrace.enable("t.alloctrace")
reported, in_trace = [], []

def attempt(request, make):
    try: make(request)
    except torch.OutOfMemoryError as error:
        text = re.sub(r"0x[0-9a-f]+", "ADDRESS", re.sub(r"[Pp]rocess \\d+", "process N", str(error)))
        reported.append([repr(type(error)), isinstance(error, RuntimeError), text])
        if not traced: return
        # The program may report the error and exit now: the event must already be in the file.
        session.flush()
        ooms = alloctrace.load("t.alloctrace").events(kinds=["oom"])
        last = ooms.iloc[-1]
        in_trace.append([len(ooms), int(last["requested_bytes"]) == request, int(last["stack_id"]) > 0])

def allocate(request): return torch.empty(request, dtype=torch.uint8, device="cuda")
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, grad): return allocate(1 << 42)
def in_backward(request): Fails.apply(torch.ones(10, device="cuda", requires_grad=True)).sum().backward()

blocks = [allocate(100 << 20) for _ in range(3)]
attempt(1 << 42, allocate)
del blocks
torch.cuda.set_per_process_memory_fraction(0.0001)
attempt(1 << 30, allocate)
torch.cuda.set_per_process_memory_fraction(1.0)
thread = threading.Thread(target=attempt, args=(1 << 43, allocate))
thread.start(); thread.join()
graph = torch.cuda.CUDAGraph()
def captured(request):
    with torch.cuda.graph(graph): allocate(request)
attempt(1 << 42, captured)
attempt(1 << 42, in_backward)  # last: its thread frees the tensors some time later
reported.append([torch.cuda.memory_stats()["num_ooms"], allocate(1000).numel()])
if traced: alloctrace.disable()
print(json.dumps([reported, in_trace]), flush=True)
# autograd's failed thread still frees Python objects: if the interpreter ended now, torch would abort, traced or not.
os._exit(0)
"""


def test_out_of_memory_error_is_unchanged_and_in_trace_when_raised(run_cuda_program, tmp_path: Path) -> None:
    untraced, traced = (run_cuda_program(OOM_PROGRAM, mode, memory="2GiB").stdout for mode in ("untraced", "traced"))

    if has_nvidia_gpu():  # the driver's free memory varies: others may use the GPU
        untraced, traced = (re.sub(r"[\d.]+ [GM]iB (is free|memory in use)", r"\1", out) for out in (untraced, traced))
    (reported, _), (reported_of_traced, in_trace) = json.loads(untraced), json.loads(traced)
    assert reported == reported_of_traced and "Tried to allocate 4096.00 GiB" in reported[0][2]
    # One event per error, with its request and Python stack; backward has a stack too, as it ran a Python function.
    assert in_trace == [[count, True, True] for count in range(1, 6)]
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace._recorded.kind_counts["oom"] == 5 and trace.integrity.state == "complete"
    assert_events_are_consistent(trace)


def test_no_deadlock_when_threads_hold_gil_and_wait_for_allocator_lock(run_cuda_program, tmp_path: Path) -> None:
    """Run threads that hold the GIL and wait for the allocator's lock, under which the hook must not take the GIL."""
    process = run_cuda_program(
        """
        import ctypes, faulthandler, sys, threading, torch, pytorch_alloctrace as alloctrace
        faulthandler.dump_traceback_later(240, exit=True)
        native, native_with_gil = ctypes.CDLL(sys.argv[1]), ctypes.PyDLL(sys.argv[1])
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, grad): return grad * 2 + torch.zeros_like(grad)
        def train():
            x = torch.ones(100, 100, device="cuda", requires_grad=True)
            for _ in range(30):
                y = Doubled.apply(Doubled.apply(x) @ x)
                y.sum().backward()
                x.grad = None
        stop = threading.Event()
        def watch():
            while not stop.is_set():
                torch.cuda.memory_allocated(); torch.cuda.memory_stats()
        session = alloctrace.enable("t.alloctrace")
        torch.ones(1, device="cuda")
        watchers = [threading.Thread(target=watch) for _ in range(2)]
        workers = [threading.Thread(target=train) for _ in range(3)]
        workers.append(threading.Thread(target=native.allocate_in_threads, args=(b"cuda", 2, 5_000)))
        for thread in watchers + workers: thread.start()
        # This call holds the GIL throughout, while other threads allocate and wait for the GIL.
        native_with_gil.allocate_in_threads(b"cuda", 2, 5_000)
        session.snapshot()
        for thread in workers: thread.join()
        stop.set()
        for thread in watchers: thread.join()
        alloctrace.disable()
        print("done")
        """,
        str(contract_library()),
    )

    assert process.stdout.endswith("done\n"), process.stderr
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.lost == 0 and trace.integrity.reentered == 0
    assert_events_are_consistent(trace)
    events = trace.events(columns=["kind", "device", "stack_id", "node_type"])
    allocs = events[(events["kind"] == "alloc") & (events["device"] == "cuda:0")]
    assert (allocs["stack_id"] == 0).sum() >= 20_000  # of the native threads
    in_backward = allocs[allocs["node_type"] == "DoubledBackward"]
    assert len(in_backward) >= 3 * 30 * 2 * 2 and (in_backward["stack_id"] != 0).all()


FOREIGN_ALLOCATOR = """
#include <cuda_runtime_api.h>
static long calls = 0;
extern "C" void* foreign_malloc(size_t size, int device, cudaStream_t) {
  void* address = nullptr; ++calls;
  return cudaMalloc(&address, size) == cudaSuccess ? address : nullptr;
}
extern "C" void foreign_free(void* address, size_t, int, cudaStream_t) { cudaFree(address); }
extern "C" long foreign_calls() { return calls; }
"""


def test_registered_allocator_is_recorded_when_registered_before_enable(run_cuda_program, tmp_path: Path) -> None:
    (tmp_path / "foreign.cpp").write_text(FOREIGN_ALLOCATOR)
    build_library(tmp_path / "foreign.cpp", tmp_path / "foreign.so")
    program = """
        import ctypes, sys, warnings, torch, pytorch_alloctrace as alloctrace
        def register():
            foreign = torch.cuda.memory.CUDAPluggableAllocator("./foreign.so", "foreign_malloc", "foreign_free")
            torch.cuda.memory.change_current_allocator(foreign)
        if sys.argv[1] == "before": register()
        alloctrace.enable(f"{sys.argv[1]}.alloctrace")
        if sys.argv[1] == "after": register()
        blocks = [torch.empty(1000, device="cuda") for _ in range(10)]
        del blocks[:4]
        calls = ctypes.CDLL("./foreign.so").foreign_calls
        assert calls() == 10, calls()
        try: register()
        except RuntimeError as error: print("refused:", "initialized" in str(error))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # disable() raises it, and must still end the recording
            try: alloctrace.disable()
            except RuntimeWarning as warning: print(warning)
        more = torch.empty(1000, device="cuda")
        assert calls() == 11, calls()
        del blocks, more
        with alloctrace.enable(f"{sys.argv[1]}-again.alloctrace"): block = torch.empty(500, device="cuda")
        del block
    """

    after = run_cuda_program(program, "after").stdout

    assert "with another one (pluggable)" in after and "refused: True" in after
    trace = alloctrace.load(tmp_path / "after.alloctrace")
    assert trace.integrity.ended and "cuda:0" not in trace.devices
    assert trace._recorded.ending["cuda_allocator_replaced_by"]
    assert not list(tmp_path.glob("*.spool"))

    before = run_cuda_program(program, "before").stdout

    assert before == "refused: True\n"
    trace = alloctrace.load(tmp_path / "before.alloctrace")
    assert ending_without_scan(trace._recorded.ending) == {"reason": "disable"}
    assert trace.integrity.state == "complete"
    assert trace._recorded.kind_counts["alloc"] == 10 and trace._recorded.kind_counts["free_completed"] == 4
    assert len(trace.live(device="cuda:0")) == 6
    for name in ("after", "before"):  # the allocator in place at enable() is recorded
        again = alloctrace.load(tmp_path / f"{name}-again.alloctrace")
        assert again._recorded.kind_counts["alloc"] == 1 and again.integrity.state == "complete"


def test_trace_is_complete_when_program_ends_with_an_error(run_cuda_program, tmp_path: Path) -> None:
    """Register exit handlers before and after the recorder's: in reverse order, the first runs after the recording."""
    process = run_cuda_program(
        """
        import atexit, threading, time
        def late(size):
            torch.empty(size, dtype=torch.uint8)
            print("late", size, flush=True)
        atexit.register(late, 3333)
        import torch, pytorch_alloctrace as alloctrace
        atexit.register(late, 2222)
        alloctrace.enable("t.alloctrace")
        def both(size): return torch.empty(size, dtype=torch.uint8), torch.empty(10, device="cuda")
        tensors = [torch.empty(1000, device="cuda", requires_grad=True) for _ in range(50)]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph): captured = tensors[0] * 2
        class Last:
            def __init__(self): self.tensors = both(4444)
            def __del__(self): self.others = both(5555)
        last = Last()
        def fails():
            tensor = torch.empty(30, device="cuda")
            raise ValueError("of a thread")
        thread = threading.Thread(target=fails)
        thread.start(); thread.join()
        threading.Thread(target=lambda: [time.sleep(0.05), both(6666)]).start()
        1 / 0
        """,
        check=False,
        fresh=True,
    )

    assert process.returncode == 1 and process.stdout == "late 2222\nlate 3333\n", process.stderr
    assert "ValueError: of a thread" in process.stderr and "ZeroDivisionError" in process.stderr
    trace = alloctrace.load(tmp_path / "t.alloctrace")
    assert trace.integrity.state == "complete" and trace.integrity.ended and trace.verify().missed_frees == 0
    assert (trace.live(device="cuda:0")["requested_bytes"] == 4000).sum() >= 50
    allocations = trace.events(kinds=["alloc"]).query("device == 'cpu'")
    sizes = (2222, 3333, 4444, 5555, 6666)
    tables = allocations, trace.live()
    recorded, live = ([size for size in table["requested_bytes"] if size in sizes] for table in tables)
    assert (recorded, live) == ([4444, 6666, 2222], [4444])
    assert_events_are_consistent(trace)


def test_committed_events_are_read_when_cuda_program_is_killed(run_cuda_program, tmp_path: Path) -> None:
    assert_killed_recordings_are_complete(run_cuda_program, tmp_path, 4, "cuda")


def test_free_counts_as_one_lost_event_when_ring_is_full(run_cuda_program, tmp_path: Path) -> None:
    """Refuse all writes until the ring is full: recorded and lost events must add up to all events."""
    run_cuda_program(
        """
        import os, resource, time, torch
        import pytorch_alloctrace as alloctrace
        from pytorch_alloctrace.recording import session
        session.RING_EVENTS = 1024
        recording = alloctrace.enable("t.alloctrace", devices=("cuda",), on_full="drop")
        torch.empty(1000, device="cuda")
        recording.flush()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize("t.alloctrace"), limits[1]))
        for _ in range(3000):
            torch.empty(1000, device="cuda")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        for _ in range(50):
            try:
                recording.flush()
                break
            except alloctrace.SessionError:
                time.sleep(0.1)
        alloctrace.disable()
        """
    )

    trace = alloctrace.load(tmp_path / "t.alloctrace")
    kinds = trace.events()["kind"].value_counts()
    frees = kinds.get("free_completed", 0)
    assert trace.integrity.lost > 4000
    # A few events of other kinds, such as of calls that took long, may be lost too.
    assert 0 <= kinds["alloc"] + frees + trace.integrity.lost - 2 * 3001 < 500
