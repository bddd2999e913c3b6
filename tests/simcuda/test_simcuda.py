"""tools/simcuda: devices, memory, streams, graphs, error names and forks of the simulated device, used by PyTorch.

Every program runs in its own process, through tools/simcuda/run, without this project's recorder."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from simcuda_runs import GIB, MIB, PRELUDE, RUN, Simulate, run_simulated

CONTEXT_BYTES = 500 * MIB
PAGE_BYTES = 2 * MIB


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    return partial(run_simulated, tmp_path, prelude=PRELUDE)


STARTS = {"malloc": "memory", "malloc_async": "pool", "pool_reserve": "chunk", "create": "physical", "map": "mapping"}
ENDS = {"free_async": "pool", "pool_release": "chunk", "destroy": "physical", "unmap": "mapping"}


def read_log(path: Path) -> tuple[Counter[str], Counter[int]]:
    """Return the number of each event in a driver log, and the bytes in use on each device at its end: contexts,
    cudaMalloc's blocks, physical memory and chunks of pools. The README describes the format."""
    counts: Counter[str] = Counter()
    live: dict[tuple[str, int], tuple[int, int]] = {}
    for line in path.read_text().splitlines():
        event, *numbers = line.split()
        counts[event] += 1
        values = [int(number, 0) for number in numbers]
        if event == "context":
            live["context", values[0]] = (values[0], CONTEXT_BYTES)
        elif event in STARTS:
            device, address, size = values[:3]
            key = (STARTS[event], address)
            assert key not in live, f"allocated twice: {line}"
            live[key] = (device, size)
        elif event in ENDS or event == "free":
            device, address, size = values[:3]
            kind = ENDS.get(event) or ("pool" if ("pool", address) in live else "memory")
            assert live.pop((kind, address), None) == (device, size), f"no such allocation: {line}"
    used: Counter[int] = Counter()
    for (kind, _), (device, size) in live.items():
        if kind in ("context", "memory", "physical", "chunk"):
            used[device] += -(-size // PAGE_BYTES) * PAGE_BYTES
    return counts, used


@pytest.mark.slow("simcuda")
def test_large_devices_use_little_host_memory(simulate: Simulate) -> None:
    process = simulate(
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
        # Large copies and memory set to zero have no content.
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

    assert process.stdout.splitlines()[0] == f"8 {[640] * 8}"
    assert "invalid device ordinal" in process.stdout


@pytest.mark.slow("simcuda")
def test_visible_devices_are_respected_and_invalid_memory_fails(simulate: Simulate) -> None:
    source = """
    import torch
    print([torch.cuda.get_device_properties(i).pci_bus_id for i in range(torch.cuda.device_count())])
    """
    cases = [
        ({}, [1, 2, 3, 4]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
    ]
    for environment, expected in cases:
        assert simulate(source, "--devices=4", **environment).stdout == f"{expected}\n"

    process = simulate("import torch; torch.cuda.device_count()", "--memory", "much", check=False)
    assert process.returncode == 2
    assert "SIMCUDA_MEMORY=much" in process.stderr


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
os._exit(0)     # the log ends without frees
"""


@pytest.mark.parametrize("configuration", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_log_adds_up_to_memory_in_use(simulate: Simulate, tmp_path: Path, configuration: str) -> None:
    log = tmp_path / "driver.log"
    process = simulate(ALLOCATIONS, "--devices=2", f"--log={log}", PYTORCH_ALLOC_CONF=configuration)
    counts, in_use = read_log(log)
    for device, line in enumerate(process.stdout.splitlines()):
        used, reserved = map(int, line.split())
        assert used == in_use[device]
        assert used - CONTEXT_BYTES == reserved > 0

    expected = {"": ("malloc", "free"), "expandable_segments:True": ("map", "unmap", "create", "destroy", "reserve")}
    for event in expected.get(configuration, ("malloc_async", "free_async", "pool_reserve", "pool_release")):
        assert counts[event] > 3
    if configuration:
        assert "malloc" not in counts


@pytest.mark.slow("simcuda")
@pytest.mark.parametrize("configuration", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_allocator_raises_out_of_memory_at_limit(simulate: Simulate, tmp_path: Path, configuration: str) -> None:
    process = simulate(
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
    fitting = (4 * GIB - CONTEXT_BYTES) // (100 * MIB)
    count, text = process.stdout.split(" ", 1)
    assert fitting - 1 <= int(count) <= fitting
    assert "4.00 GiB" in text

    counts, _ = read_log(tmp_path / "log")
    assert counts["out_of_memory"] >= 1


@pytest.mark.slow("simcuda")
def test_pinned_memory_is_registered_and_logged(simulate: Simulate, tmp_path: Path) -> None:
    simulate(
        """
        import torch
        pinned = torch.arange(1000.0).pin_memory()
        assert pinned[10:].is_pinned() and not torch.empty(5).is_pinned()
        assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), pinned)
        registered = torch.empty(1000)
        cudart = torch.cuda.cudart()
        assert int(cudart.cudaHostRegister(registered.data_ptr(), 4000, 0)) == 0
        assert registered.is_pinned()
        assert int(cudart.cudaHostRegister(registered.data_ptr(), 4000, 0)) == 712
        assert int(cudart.cudaHostUnregister(registered.data_ptr())) == 0
        assert cuda.cudaGetLastError() == 712       # or the next launch would report it
        assert not registered.is_pinned()
        assert cuda.cudaFree(pointer(pinned.data_ptr())) == 1
        assert cuda.cudaFree(pointer(12345)) == 1
        cuda.cudaGetLastError()
        """,
        f"--log={tmp_path / 'log'}",
    )
    counts, _ = read_log(tmp_path / "log")

    assert counts["host_alloc"] and counts["host_register"] == counts["host_unregister"] == 1


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
        z = torch.empty(2**20, device="cuda")    # processes pending frees
        assert "active_pending_free" not in states()
        torch.cuda.synchronize()

        # Work behind an event waits for it, on any stream; an event that is recorded again is another event.
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
        after.synchronize()                      # a real device would finish
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


@pytest.mark.slow("simcuda")
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


@pytest.mark.slow("simcuda")
def test_graphs_run_at_replay_and_have_their_own_pool(simulate: Simulate) -> None:
    simulate(
        """
        import torch
        x = torch.randn(4, 8, device="cuda")
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

        # A replay is work like any other.
        cuda.simcuda_hold_stream(pointer(side.cuda_stream))
        with torch.cuda.stream(side):
            graph.replay()
        assert not side.query()
        cuda.simcuda_release_stream(pointer(side.cuda_stream))
        assert side.query()
        """
    )


@pytest.mark.slow("simcuda")
def test_capture_is_invalidated_by_unsafe_calls(simulate: Simulate) -> None:
    process = simulate(
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
    lines = process.stdout.splitlines()
    assert lines[:5] == [
        "nothing: fine",
        "900",
        "malloc: CUDA error: operation failed due to a previous error during capture",
        "relaxed malloc: fine",
        "unjoined: CUDA error: capturing stream has unjoined work",
    ]

    begins = ["isolation: CUDA error: ", "synchronize: CUDA error: operation ", "event query: CUDA error: operation "]
    assert all(line.startswith(begin) for line, begin in zip(lines[5:], begins, strict=True))


def find_cuda_folder() -> Path:
    for folder in sys.path:
        if headers := sorted(Path(folder).glob("nvidia/cu*/include/cuda.h")):
            return headers[0].parents[1]
    pytest.fail("no CUDA headers are installed with torch")


@pytest.mark.slow("simcuda")
def test_error_names_match_cuda(simulate: Simulate) -> None:
    """Compare with the real library, which returns names and texts of errors without a device."""
    cudart = ctypes.CDLL(str(next((find_cuda_folder() / "lib").glob("libcudart.so.*"))))
    cudart.cudaGetErrorName.restype = cudart.cudaGetErrorString.restype = ctypes.c_char_p
    expected = [f"{cudart.cudaGetErrorName(i).decode()}: {cudart.cudaGetErrorString(i).decode()}" for i in range(1200)]
    assert sum("unrecognized" not in line for line in expected) > 100

    header = (find_cuda_folder() / "include" / "cuda.h").read_text()
    constants = re.findall(r"^ +(CUDA_(?:SUCCESS|ERROR_\w+)) += (\d+)", header, re.M)
    driver = {int(number): name for name, number in constants}
    assert len(driver) > 80

    process = simulate(
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
    lines = process.stdout.splitlines()
    assert lines[:1200] == expected
    assert {int(number): name for number, name in map(str.split, lines[1200:])} == driver


def test_unknown_calls_report_their_names(simulate: Simulate) -> None:
    process = simulate(
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

    assert process.stderr.count("simcuda: cuNoSuchFunction is not simulated\n") == 1
    assert "simcuda: cudaIpcGetMemHandle is not simulated\n" in process.stderr
    assert process.stdout.startswith("CUDA error: ")


@pytest.mark.slow("simcuda")
def test_forked_child_of_cuda_process_gets_error(simulate: Simulate) -> None:
    process = simulate(
        """
        import torch
        torch.ones(1, device="cuda")
        child = os.fork()
        if child == 0:
            os._exit(cuda.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.ones(3).cuda().tolist())
        """
    )
    assert process.stdout == "3 [1.0, 1.0, 1.0]\n"  # initialization error


@pytest.mark.slow("simcuda")
def test_run_and_build_report_usage_and_missing_headers() -> None:
    def call(*command: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    assert call(RUN).returncode == 2
    assert "usage: tools/simcuda/run" in call(RUN, "--unheard-of", "true").stderr

    no_headers = call(RUN.with_name("build"), "--python", "/usr/bin/true")
    assert no_headers.returncode == 1
    assert "nvidia-cuda-crt" in no_headers.stderr
    assert call(RUN, "--", "sh", "-c", "exit 7").returncode == 7
