"""tools/simcuda: devices, memory, streams, events and graphs of the simulated CUDA device, as PyTorch sees them.

Every program runs in a process of its own, through tools/simcuda/run, without this project's recorder."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import ROOT, program_environment

RUN = ROOT / "tools" / "simcuda" / "run"
KIB, MIB, GIB = 2**10, 2**20, 2**30
CONTEXT = 500 * MIB
PAGE = 2 * MIB

# What the programs share: the simulated runtime through ctypes.
PRELUDE = """
import ctypes, os, sys
cuda = ctypes.CDLL(None)
NOT_READY, NOT_PERMITTED_IN_CAPTURE = 600, 900
def pointer(value): return ctypes.c_void_p(value)
"""

Simulate = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    def run(source: str, *options: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "program.py"
        script.write_text(PRELUDE + textwrap.dedent(source))
        clean = {
            name: value for name, value in program_environment().items() if not name.startswith(("SIMCUDA", "CUDA"))
        }
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            clean.pop(name, None)
        done = subprocess.run(
            [RUN, *options, sys.executable, script],
            cwd=tmp_path,
            env={**clean, **environment},
            capture_output=True,
            text=True,
            timeout=300,  # the first run builds the library
            stdin=subprocess.DEVNULL,
        )
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def round_up(size: int, unit: int = PAGE) -> int:
    return -(-size // unit) * unit


STARTS = {"malloc": "memory", "malloc_async": "pool", "pool_reserve": "chunk", "create": "physical", "map": "mapping"}
ENDS = {"free_async": "pool", "pool_release": "chunk", "destroy": "physical", "unmap": "mapping"}


@dataclass
class Ledger:
    """What a log of the simulated driver adds up to. Knows its format from the README alone."""

    live: dict[tuple[str, int], tuple[int, int]] = field(
        default_factory=dict
    )  # (kind, address or handle) -> device, bytes
    counts: dict[str, int] = field(default_factory=dict)
    contexts: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        ledger = cls()
        for line in path.read_text().splitlines():
            event, *numbers = line.split()
            ledger.counts[event] = ledger.counts.get(event, 0) + 1
            values = [int(number, 0) for number in numbers]
            if event == "context":
                ledger.contexts.add(values[0])
            elif event in STARTS:
                device, where, size = values[:3]
                key = (STARTS[event], where)
                assert key not in ledger.live, f"given out twice: {line}"
                ledger.live[key] = (device, size)
            elif event in ENDS or event == "free":
                device, where, size = values[:3]
                kind = ENDS.get(event) or ("pool" if ("pool", where) in ledger.live else "memory")
                assert ledger.live.pop((kind, where), None) == (device, size), f"not given out like this: {line}"
        return ledger

    def used(self, device: int) -> int:
        """Of the device's memory: contexts, what cudaMalloc rounds up, physical memory, chunks of pools."""
        sizes = [
            round_up(size)
            for (kind, _), (owner, size) in self.live.items()
            if owner == device and kind in ("memory", "physical", "chunk")
        ]
        return sum(sizes) + (CONTEXT if device in self.contexts else 0)


def test_out_of_memory_says_true_numbers(simulate: Simulate) -> None:
    done = simulate(
        """
        import torch
        x = torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda")
        print(*torch.cuda.mem_get_info())
        try:
            torch.empty(70 * 2**30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(error)
        free = torch.cuda.mem_get_info()[0]
        y = torch.empty(free, dtype=torch.uint8, device="cuda")      # to the last byte
        print("left", torch.cuda.mem_get_info()[0])
        try:
            torch.empty(20 * 2**20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(str(error).split(". Of")[0])
        print(torch.cuda.memory_summary())
        """
    )
    assert done.stdout.startswith(f"{70 * GIB - CONTEXT} {80 * GIB}\n")
    assert (
        "CUDA out of memory. Tried to allocate 70.00 GiB. "
        "GPU 0 has a total capacity of 80.00 GiB of which 69.51 GiB is free." in done.stdout
    )
    assert "10.00 GiB is allocated by PyTorch" in done.stdout
    assert "left 0\n" in done.stdout
    assert (
        "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 0 bytes is free" in done.stdout
    )
    assert re.search(r"CUDA OOMs: +2 ", done.stdout)


def test_many_large_devices_cost_nothing(simulate: Simulate) -> None:
    done = simulate(
        """
        import resource, torch
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = torch.cuda.device_count()
        keep = [torch.empty(600 * 2**30, dtype=torch.uint8, device=f"cuda:{i}") for i in range(count)]
        for tensor in keep:
            tensor.zero_()
        print(count, [torch.cuda.mem_get_info(i)[1] // 2**30 for i in range(count)])
        travelling = torch.arange(1000.0)
        for i in range(count):
            assert i == 0 or torch.cuda.can_device_access_peer(i - 1, i)
            travelling = travelling.to(f"cuda:{i}", non_blocking=True)
            assert travelling.get_device() == i
        torch.cuda.synchronize()
        assert torch.equal(travelling.cpu(), torch.arange(1000.0))
        # Large copies keep no content, memory that is set to zero has none.
        large = torch.ones(64 * 2**20, dtype=torch.uint8).cuda()
        cuda.cudaMemset(pointer(keep[0].data_ptr()), 0, ctypes.c_size_t(600 * 2**30))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 2 * 2**20, grown    # KiB
        try:
            torch.empty(0, device=f"cuda:{count}")
        except Exception as error:
            print(str(error).splitlines()[0])
        """,
        "--memory",
        "640GiB",
        "--devices",
        "8",
    )
    assert done.stdout.splitlines()[0] == f"8 {[640] * 8}"
    assert "invalid device ordinal" in done.stdout


def test_visible_devices_and_settings(simulate: Simulate) -> None:
    source = """
    import torch
    print([torch.cuda.get_device_properties(i).pci_bus_id for i in range(torch.cuda.device_count())])
    """
    shown = [
        ({}, [1, 2, 3, 4]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ]
    for environment, expected in shown:
        assert simulate(source, "--devices=4", **environment).stdout == f"{expected}\n"
    refused = simulate("import torch; torch.cuda.device_count()", "--memory", "much", check=False)
    assert refused.returncode == 2
    assert "SIMCUDA_MEMORY=much" in refused.stderr


def test_held_streams_keep_frees_and_events_pending(simulate: Simulate) -> None:
    simulate(
        """
        import torch
        def states():
            return [b["state"] for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
        def handle(stream): return pointer(stream.cuda_stream)
        main, side, other = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()

        x = torch.empty(2**20, device="cuda")
        assert cuda.simcuda_hold_stream(handle(side)) == 0
        with torch.cuda.stream(side):
            y = x * 2
        x.record_stream(side)
        address = x.data_ptr()
        del x
        assert "active_pending_free" in states()
        assert torch.empty(2**20, device="cuda").data_ptr() != address
        assert "active_pending_free" in states()
        assert not side.query() and main.query()
        cuda.simcuda_release_stream(handle(side))
        assert side.query()
        z = torch.empty(2**20, device="cuda")    # takes in what was pending
        assert "active_pending_free" not in states()
        torch.cuda.synchronize()

        # Work behind an event waits with it, on any stream; an event recorded anew is another.
        cuda.simcuda_hold_stream(handle(side))
        event, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(side):
            y.add_(1)
            event.record()
        other.wait_event(event)
        with torch.cuda.stream(other):
            z.add_(1)
            after.record()
        assert not event.query() and not after.query() and not other.query()
        event.record(main)
        assert event.query() and not after.query()
        after.synchronize()                      # a real device gets there
        assert after.query() and side.query() and other.query()
        assert event.elapsed_time(after) > 0
        with torch.cuda.stream(side):
            y.add_(1)
        assert not side.query()                  # still held
        torch.cuda.synchronize()
        assert side.query()
        cuda.simcuda_release_stream(handle(side))

        # Functions of the host run in the stream's order, on another thread.
        import threading
        seen = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        function = kind(lambda data: seen.append((data, threading.get_native_id())))
        cuda.simcuda_hold_stream(handle(side))
        for number in (1, 2, 3):
            assert cuda.cudaLaunchHostFunc(handle(side), function, pointer(number)) == 0
        assert seen == []
        side.synchronize()
        assert [number for number, _ in seen] == [1, 2, 3]
        assert threading.get_native_id() not in {thread for _, thread in seen}
        """
    )


def test_blocking_streams_wait_for_the_legacy_stream(simulate: Simulate) -> None:
    simulate(
        """
        blocking, free = ctypes.c_void_p(), ctypes.c_void_p()
        memory = ctypes.c_void_p()
        assert cuda.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(100)) == 0
        assert cuda.cudaStreamCreateWithFlags(ctypes.byref(blocking), 0) == 0
        assert cuda.cudaStreamCreateWithFlags(ctypes.byref(free), 1) == 0
        cuda.simcuda_hold_stream(None)
        def work(stream): assert cuda.cudaMemsetAsync(memory, 1, ctypes.c_size_t(100), stream) == 0
        work(None), work(blocking), work(free)
        assert cuda.cudaStreamQuery(None) == cuda.cudaStreamQuery(blocking) == NOT_READY
        assert cuda.cudaStreamQuery(free) == 0
        assert cuda.cudaGetLastError() == NOT_READY and cuda.cudaGetLastError() == 0
        cuda.simcuda_release_stream(None)
        assert cuda.cudaStreamQuery(blocking) == 0
        cuda.simcuda_hold_stream(blocking)
        work(blocking), work(None)
        assert cuda.cudaStreamQuery(None) == NOT_READY
        assert cuda.cudaDeviceSynchronize() == 0
        assert cuda.cudaStreamQuery(None) == 0
        assert cuda.cudaStreamDestroy(blocking) == 0
        assert cuda.cudaStreamQuery(blocking) == 400     # invalid resource handle
        """
    )


ALLOCATIONS = """
import random, torch
draw = random.Random(1)
live = []
for step in range(400):
    if live and draw.random() < 0.45:
        live.pop(draw.randrange(len(live)))
    else:
        size = draw.choice([1, 1000, 2**20, 3 * 2**20, draw.randrange(1, 200 * 2**20)])
        live.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{draw.randrange(2)}"))
    if step % 100 == 50:
        torch.cuda.empty_cache()
torch.cuda.synchronize(0), torch.cuda.synchronize(1)
for device in range(2):
    free, total = torch.cuda.mem_get_info(device)
    print(total - free, torch.cuda.memory_reserved(device))
sys.stdout.flush()
os._exit(0)     # what is live stays so in the log
"""


@pytest.mark.parametrize("configuration", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_log_adds_up_to_the_memory_in_use(simulate: Simulate, tmp_path: Path, configuration: str) -> None:
    log = tmp_path / "driver.log"
    done = simulate(ALLOCATIONS, "--devices=2", f"--log={log}", PYTORCH_ALLOC_CONF=configuration)
    ledger = Ledger.read(log)
    for device, line in enumerate(done.stdout.splitlines()):
        used, reserved = map(int, line.split())
        assert used == ledger.used(device)
        assert used - CONTEXT == reserved > 0
    expected = {"": ("malloc", "free"), "expandable_segments:True": ("map", "unmap", "create", "destroy", "reserve")}
    for event in expected.get(configuration, ("malloc_async", "free_async", "pool_reserve", "pool_release")):
        assert ledger.counts[event] > 3
    if configuration:
        assert "malloc" not in ledger.counts


@pytest.mark.parametrize("configuration", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_out_of_memory_of_other_allocators(simulate: Simulate, tmp_path: Path, configuration: str) -> None:
    done = simulate(
        """
        import torch
        keep = []
        try:
            while True:
                keep.append(torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError as error:
            print(len(keep), error)
        del keep[:5]
        torch.empty(300 * 2**20, dtype=torch.uint8, device="cuda")
        """,
        "--memory=4GiB",
        f"--log={tmp_path / 'log'}",
        PYTORCH_ALLOC_CONF=configuration,
    )
    fitting = (4 * GIB - CONTEXT) // (100 * MIB)
    count, text = done.stdout.split(" ", 1)
    assert fitting - 1 <= int(count) <= fitting
    assert "4.00 GiB" in text
    ledger = Ledger.read(tmp_path / "log")
    assert ledger.counts["out_of_memory"] >= 1


def test_graphs(simulate: Simulate) -> None:
    simulate(
        """
        import torch
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        side, other = torch.cuda.Stream(), torch.cuda.Stream()

        # Copies happen at replay, not at capture, and again at each replay.
        source, target = torch.arange(4.0).cuda(), torch.zeros(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(source)
        assert target.tolist() == [0, 0, 0, 0]
        graph.replay()
        assert target.tolist() == [0, 1, 2, 3]
        source.copy_(torch.ones(4))
        graph.replay()
        assert target.tolist() == [1, 1, 1, 1]

        # Other streams join through events; random numbers; the graph's own memory pool.
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=side):
            assert torch.cuda.is_current_stream_capturing()
            first = x * 2
            other.wait_stream(side)
            with torch.cuda.stream(other):
                assert torch.cuda.is_current_stream_capturing()
                second = torch.nn.functional.dropout(x, 0.5)
            side.wait_stream(other)
            third = first + second
        assert not torch.cuda.is_current_stream_capturing()
        graph.instantiate()
        count = ctypes.c_size_t()
        raw = pointer(graph.raw_cuda_graph())
        assert cuda.cudaGraphGetNodes(raw, None, ctypes.byref(count)) == 0 and count.value >= 3
        nodes = (ctypes.c_void_p * count.value)()
        assert cuda.cudaGraphGetNodes(raw, nodes, ctypes.byref(count)) == 0
        needed = ctypes.c_size_t()
        assert cuda.cudaGraphNodeGetDependencies(pointer(nodes[-1]), None, None, ctypes.byref(needed)) == 0
        assert needed.value == 2             # both branches
        graph.replay()
        torch.cuda.synchronize()
        pools = {tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}
        assert tuple(graph.pool()) in pools and len(pools) > 1

        # A replay is work like other work.
        cuda.simcuda_hold_stream(pointer(side.cuda_stream))
        with torch.cuda.stream(side):
            graph.replay()
        assert not side.query()
        cuda.simcuda_release_stream(pointer(side.cuda_stream))
        assert side.query()

        module = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.ReLU()).cuda()
        graphed = torch.cuda.make_graphed_callables(module, (x.detach().clone().requires_grad_(),))
        for _ in range(2):
            graphed(x).sum().backward()
        assert x.grad.shape == x.shape

        # The state of a pool, kept and put back, as torch.compile does.
        pool = torch.cuda.graph_pool_handle()
        def blocks():
            return {(b["address"], b["size"], b["state"]) for s in torch.cuda.memory_snapshot()
                    if tuple(s["segment_pool_id"]) == tuple(pool) for b in s["blocks"]}
        ones = torch.ones(2**20, device="cuda")
        first = torch.cuda.CUDAGraph()
        with torch.cuda.graph(first, pool=pool, stream=side):
            kept, dropped, later = ones * 2, ones * 3, ones * 4
        del dropped
        state, before = torch._C._cuda_getCheckpointState(0, pool), blocks()
        del later
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second, pool=pool, stream=side):
            fresh = ones * 5
        assert blocks() != before
        torch._C._cuda_setCheckpointPoolState(0, state, [fresh.untyped_storage()._cdata], [])
        assert blocks() == before
        """
    )


def test_what_spoils_a_capture(simulate: Simulate) -> None:
    done = simulate(
        """
        import torch
        x = torch.ones(100, device="cuda")
        side, other, memory = torch.cuda.Stream(), torch.cuda.Stream(), ctypes.c_void_p()
        size = ctypes.c_size_t(100)
        def attempt(name, spoil):
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=side):
                    y = x * 2
                    spoil()
            except Exception as error:
                print(name + ":", str(error).splitlines()[0])
            else:
                print(name + ": fine")
            torch.cuda.synchronize()
            x.add_(1)
        def fork_without_join():
            other.wait_stream(side)
            with torch.cuda.stream(other):
                return x * 3
        def relaxed_malloc():
            mode = ctypes.c_int(2)
            cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            assert cuda.cudaMalloc(ctypes.byref(memory), size) == 0
            cuda.cudaThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        event = torch.cuda.Event()
        event.record(other)
        attempt("nothing", lambda: None)
        attempt("malloc", lambda: print(cuda.cudaMalloc(ctypes.byref(memory), size)))
        attempt("relaxed malloc", relaxed_malloc)
        attempt("unjoined", fork_without_join)
        attempt("isolation", lambda: side.wait_event(event))
        attempt("synchronize", torch.cuda.synchronize)
        attempt("event query", event.query)
        handle = ctypes.c_void_p()
        cuda.cudaStreamCreate(ctypes.byref(handle))
        graph = ctypes.c_void_p()
        assert cuda.cudaStreamBeginCapture(None, 0) == 900
        assert cuda.cudaStreamBeginCapture(handle, 0) == 0
        assert cuda.cudaStreamBeginCapture(handle, 0) == 401
        assert cuda.cudaMemsetAsync(memory, 1, size, None) == 906     # the legacy stream would wait for the capture
        assert cuda.cudaStreamEndCapture(handle, ctypes.byref(graph)) == 901 and not graph.value
        """
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "nothing: fine"
    assert lines[1] == "900"
    assert lines[2] == "malloc: CUDA error: operation failed due to a previous error during capture"
    assert lines[3] == "relaxed malloc: fine"
    assert lines[4] == "unjoined: CUDA error: capturing stream has unjoined work"
    assert lines[5].startswith("isolation: CUDA error: ")
    assert lines[6].startswith("synchronize: CUDA error: operation ")
    assert lines[7].startswith("event query: CUDA error: operation ")


def test_graph_with_the_asynchronous_allocator(simulate: Simulate) -> None:
    simulate(
        """
        import torch
        x = torch.ones(1000, device="cuda")
        before = torch.cuda.memory_reserved()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            first = torch.empty(100 * 2**20, dtype=torch.uint8, device="cuda")
            addresses = {first.data_ptr()}
            del first
            y = x * 2
        graph.replay()
        addresses.add(y.data_ptr())
        # What the graph writes to at each replay belongs to it.
        others = [torch.empty(10 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(20)]
        low = min(addresses)
        assert not any(low <= other.data_ptr() < low + 100 * 2**20 for other in others)
        del others, y
        graph.reset()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() <= before + 32 * 2**20
        """,
        PYTORCH_ALLOC_CONF="backend:cudaMallocAsync",
    )


def test_pinned_memory_and_pointers(simulate: Simulate, tmp_path: Path) -> None:
    simulate(
        """
        import torch
        pinned = torch.arange(1000.0).pin_memory()
        assert pinned.is_pinned() and pinned[10:].is_pinned()
        assert not torch.empty(5).is_pinned()
        assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), pinned)
        loader = torch.utils.data.DataLoader(torch.arange(40), batch_size=10, num_workers=2, pin_memory=True)
        assert [batch.cuda(non_blocking=True).tolist()[0] for batch in loader if batch.is_pinned()] == [0, 10, 20, 30]
        registered = torch.empty(1000)
        cudart = torch.cuda.cudart()
        assert int(cudart.cudaHostRegister(registered.data_ptr(), 4000, 0)) == 0
        assert registered.is_pinned()
        assert int(cudart.cudaHostRegister(registered.data_ptr(), 4000, 0)) == 712
        assert int(cudart.cudaHostUnregister(registered.data_ptr())) == 0
        assert cuda.cudaGetLastError() == 712       # else the next launch finds it
        assert not registered.is_pinned()
        class Attributes(ctypes.Structure):
            _fields_ = [("type", ctypes.c_int), ("device", ctypes.c_int), ("on_device", ctypes.c_void_p),
                        ("on_host", ctypes.c_void_p), ("reserved", ctypes.c_long * 8)]
        def kind(tensor, offset=0):
            found = Attributes()
            assert cuda.cudaPointerGetAttributes(ctypes.byref(found), pointer(tensor.data_ptr() + offset)) == 0
            return found.type, found.device
        with torch.cuda.device(1):
            assert kind(torch.empty(1000, device="cuda"), 100) == (2, 1)
        assert kind(pinned, 100) == (1, 0)
        assert kind(registered)[0] == 0
        assert cuda.cudaFree(pointer(pinned.data_ptr())) == 1
        assert cuda.cudaFree(pointer(12345)) == 1
        cuda.cudaGetLastError()
        """,
        "--devices=2",
        f"--log={tmp_path / 'log'}",
    )
    events = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert "host_alloc" in events
    assert events.count("host_register") == events.count("host_unregister") == 1


def cuda_folder() -> Path:
    for folder in sys.path:
        if found := sorted(Path(folder).glob("nvidia/cu*/include/cuda.h")):
            return found[0].parents[1]
    pytest.fail("no CUDA beside torch")


def test_error_names_are_those_of_cuda(simulate: Simulate) -> None:
    """The runtime's names and texts are asked of the real library, which gives them without a device."""
    real = ctypes.CDLL(str(next((cuda_folder() / "lib").glob("libcudart.so.*"))))
    real.cudaGetErrorName.restype = real.cudaGetErrorString.restype = ctypes.c_char_p
    expected = [f"{real.cudaGetErrorName(i).decode()}: {real.cudaGetErrorString(i).decode()}" for i in range(1200)]
    assert sum("unrecognized" not in line for line in expected) > 100
    header = (cuda_folder() / "include" / "cuda.h").read_text()
    driver = {
        int(number): name for name, number in re.findall(r"^ +(CUDA_(?:SUCCESS|ERROR_\w+)) += (\d+)", header, re.M)
    }
    assert len(driver) > 80
    done = simulate(
        """
        cuda.cudaGetErrorName.restype = cuda.cudaGetErrorString.restype = ctypes.c_char_p
        for i in range(1200):
            print(f"{cuda.cudaGetErrorName(i).decode()}: {cuda.cudaGetErrorString(i).decode()}")
        name = ctypes.c_char_p()
        for i in range(1200):
            if cuda.cuGetErrorName(i, ctypes.byref(name)) == 0:
                print(i, name.value.decode())
        """
    )
    lines = done.stdout.splitlines()
    assert lines[:1200] == expected
    assert {int(number): name for number, name in map(str.split, lines[1200:])} == driver


def test_unknown_calls_name_themselves(simulate: Simulate) -> None:
    done = simulate(
        """
        function = ctypes.c_void_p()
        found = ctypes.c_int()
        def find(name):
            error = cuda.cudaGetDriverEntryPointByVersion(name, ctypes.byref(function), 13000, ctypes.c_ulonglong(0),
                                                          ctypes.byref(found))
            assert error == 0
            return found.value
        assert find(b"cuNoSuchFunction") == 0 and function.value
        call = ctypes.CFUNCTYPE(ctypes.c_int)(function.value)
        assert call() == call() == 801      # not supported
        assert find(b"somethingElse") == 1 and not function.value
        import torch
        from torch.multiprocessing.reductions import reduce_tensor
        try:
            reduce_tensor(torch.ones(5, device="cuda"))
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        """
    )
    assert done.stderr.count("simcuda: cuNoSuchFunction is not simulated\n") == 1
    assert "simcuda: cudaIpcGetMemHandle is not simulated\n" in done.stderr
    assert done.stdout.startswith("CUDA error: ")


def test_fork(simulate: Simulate) -> None:
    done = simulate(
        """
        import torch
        def in_child(function):
            child = os.fork()
            if child == 0:
                try:
                    function()
                except BaseException as error:
                    print(type(error).__name__, str(error).splitlines()[0])
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
        sys.stdout.flush()
        in_child(lambda: print(torch.ones(3).cuda().tolist()))
        torch.ones(1, device="cuda")
        in_child(lambda: torch.ones(1, device="cuda"))
        count = ctypes.c_int()
        in_child(lambda: print(cuda.cudaGetDeviceCount(ctypes.byref(count))))
        print(torch.ones(3).cuda().tolist())
        """
    )
    lines = done.stdout.splitlines()
    assert lines[0] == lines[3] == "[1.0, 1.0, 1.0]"
    assert lines[1].startswith("RuntimeError Cannot re-initialize CUDA in forked subprocess")
    assert lines[2] == "3"  # initialization error


def test_threads(simulate: Simulate, tmp_path: Path) -> None:
    """Allocations, copies, events and host functions of many threads; the log stays an account."""
    done = simulate(
        """
        import random, threading, torch
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        calls = []
        function = kind(calls.append)
        def work(seed):
            draw, live = random.Random(seed), []
            stream = torch.cuda.Stream(device=seed % 2)
            with torch.cuda.stream(stream):
                for step in range(300):
                    live.append(torch.empty(draw.randrange(1, 30 * 2**20), dtype=torch.uint8, device="cuda"))
                    if len(live) > 5:
                        live.pop(draw.randrange(5)).record_stream(stream)
                    if step % 20 == seed:
                        assert torch.arange(5.0).cuda().tolist() == [0, 1, 2, 3, 4]
                        cuda.cudaLaunchHostFunc(pointer(stream.cuda_stream), function, None)
                        torch.cuda.empty_cache()
                stream.synchronize()
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(calls) == 8 * 15
        for device in range(2):
            torch.cuda.synchronize(device)
            free, total = torch.cuda.mem_get_info(device)
            print(total - free)
        sys.stdout.flush()
        os._exit(0)
        """,
        "--devices=2",
        f"--log={tmp_path / 'log'}",
    )
    ledger = Ledger.read(tmp_path / "log")
    assert [int(line) for line in done.stdout.splitlines()] == [ledger.used(0), ledger.used(1)]


def test_run_and_build_explain_themselves() -> None:
    def call(*command: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert call(RUN).returncode == 2
    assert "usage: tools/simcuda/run" in call(RUN, "--unheard-of", "true").stderr
    no_headers = call(RUN.with_name("build"), "--python", "/usr/bin/true")
    assert no_headers.returncode == 1
    assert "nvidia-cuda-crt" in no_headers.stderr
    assert call(RUN, "--", "sh", "-c", "exit 7").returncode == 7
