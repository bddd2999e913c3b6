"""tools/simcuda: streams, events, graphs and their capture on the simulated CUDA device, as seen by PyTorch.

Every program runs in its own process, through tools/simcuda/run, without this project's recorder."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from simcuda_runs import PRELUDE, Simulate, run_simulated


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    return partial(run_simulated, tmp_path, prelude=PRELUDE)


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
        z = torch.empty(2**20, device="cuda")    # processes what was pending
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
def test_graphs(simulate: Simulate) -> None:
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
def test_what_invalidates_a_capture(simulate: Simulate) -> None:
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
    assert lines[:5] == [
        "nothing: fine",
        "900",
        "malloc: CUDA error: operation failed due to a previous error during capture",
        "relaxed malloc: fine",
        "unjoined: CUDA error: capturing stream has unjoined work",
    ]
    begins = ["isolation: CUDA error: ", "synchronize: CUDA error: operation ", "event query: CUDA error: operation "]
    assert all(line.startswith(begin) for line, begin in zip(lines[5:], begins, strict=True))
