"""Recordings of programs made of operations, with torch's own snapshots of its allocator.

    python replay_programs.py serve            runs a program for each line of JSON on stdin:
                                               {"trace": ..., "expected": ..., "operations": [...]}
    python replay_programs.py serve-untraced   runs programs without a recording

An operation is a list: its name, then numbers, a text or a list of operations. Indices are taken modulo the number of
objects, and impossible operations are skipped, so every list of operations is a program that hypothesis can generate
and shrink. Every "begin" starts a trace: TRACE.0, TRACE.1, ...

EXPECTED has a line of JSON for each checkpoint: see Recording.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cuda_programs import exhaust, give_back_everything, set_allocator_settings, simulated_device, threads

import pytorch_alloctrace as alloctrace
from pytorch_alloctrace.recording import object_scans

Operation = list[Any]

STREAMS = 3  # per device: the default stream and two others
HAS_NO_SPLIT = "no_split" in str(inspect.signature(torch.cuda.MemPool.__init__))  # not in torch 2.9
POOL_ALLOCATORS: list[torch.cuda.memory.CUDAPluggableAllocator] = []
"""Pools' own allocators, which torch 2.9 does not keep alive, even while blocks exist."""
PEAKS = {"allocated": "allocated_bytes", "active": "active_bytes", "reserved": "reserved_bytes"}


def snapshot() -> list[dict[str, Any]]:
    """Return torch's segments, and restore the reference of True that torch 2.11 drops at each call."""
    segments = torch.cuda.memory_snapshot()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(True))
    return segments


class Recording:
    """A trace, and its lines in EXPECTED, each with torch's segments and blocks "at" a mark, step or the end.

    "mid_run": expandable segments existed at the beginning. "fractions": of the memory that the process may reserve, by
    device. "uses": [device, id, use count] of each MemPool. "peaks", at the end: each device's maxima.
    """

    def __init__(
        self, trace: Path, expected: Path, pools: Callable[[], list[tuple[torch.cuda.MemPool, int]]], **options: Any
    ) -> None:
        self._expected, self._pools = expected, pools
        self._trace = trace.name
        self._checks = self._steps = 0
        self.mid_run = torch.cuda.is_initialized() and any(segment["is_expandable"] for segment in snapshot())
        self.session = alloctrace.enable(trace, devices=("cuda",), **options)
        if torch.cuda.is_initialized():
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)

    def check(self) -> None:
        name = f"check-{self._checks}"
        self._checks += 1
        alloctrace.mark(name)
        self._write(f"mark:{name}")

    def step(self) -> None:
        alloctrace.step(self._steps)
        self._write(f"step:{self._steps}")
        self._steps += 1

    def end(self) -> None:
        device_stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
        peaks = {
            f"cuda:{device}": {measure: stats[f"{name}.all.peak"] for measure, name in PEAKS.items()}
            for device, stats in enumerate(device_stats)
            if stats
        }
        self._write("end", peaks=peaks)
        alloctrace.disable()

    def _write(self, at: str, **more: Any) -> None:
        reported = snapshot()  # at once: a new list may start a garbage collection
        segments, blocks = [], []
        for segment in reported:
            device = f"cuda:{segment['device']}"
            numbers = [segment[f"{name}_size"] for name in ("total", "allocated", "active", "requested")]
            kind = [segment["stream"], segment["segment_type"], segment["segment_pool_id"], segment["is_expandable"]]
            segments.append([device, segment["address"], *numbers, *kind])
            for block in segment["blocks"]:
                columns = [block[name] for name in ("address", "size", "requested_size", "state")]
                blocks.append([device, segment["address"], *columns])
        if torch.cuda.is_initialized():
            devices = range(torch.cuda.device_count())
            more["fractions"] = {f"cuda:{i}": torch.cuda.get_per_process_memory_fraction(i) for i in devices}
        more["uses"] = [[f"cuda:{device}", list(pool.id), pool.use_count()] for pool, device in self._pools()]
        line = {"trace": self._trace, "mid_run": self.mid_run, "at": at, "segments": segments, "blocks": blocks, **more}
        with open(self._expected, "a") as file:
            file.write(json.dumps(line) + "\n")


class Machine:
    """Interpreter of operations."""

    def __init__(self, trace: Path, expected: Path) -> None:
        self._trace, self._expected = trace, expected
        self._traces = 0
        self._recording: Recording | None = None
        self._devices = torch.cuda.device_count()
        self._live: list[torch.Tensor] = []
        self._pools: list[tuple[torch.cuda.MemPool, int, str]] = []
        self._graphs: list[tuple[torch.cuda.CUDAGraph, int]] = []
        self._streams: dict[tuple[int, int], torch.cuda.Stream] = {}
        self._held_streams: set[tuple[int, int]] = set()
        self._capturing_device: int | None = None
        self._operations: dict[str, Callable[..., None]] = {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")
        }

    def run(self, operations: list[Operation]) -> None:
        if operations[:1] != [["untraced"]]:
            self.do_begin()
        self._all(operations)
        if self._traces == 0:
            self.do_begin()
        self.do_check()
        self.do_stop()

    def _all(self, operations: list[Operation]) -> None:
        for name, *arguments in operations:
            self._operations[name](*arguments)

    def clear(self) -> None:
        """Release all memory of the program, so that the next program begins without segments."""
        for device, number in list(self._held_streams):
            self.do_release(device, number)
        self._live.clear()
        self._graphs.clear()
        self._pools.clear()
        give_back_everything()

    # The recording

    def do_untraced(self) -> None:
        """Record nothing until "begin". Must be the first operation."""

    def do_begin(self) -> None:
        if self._recording is not None:
            return
        # The trace does not contain the options of pools that are older than the recording.
        self._pools = [pool for pool in self._pools if pool[2] == "plain"]
        trace = self._trace.with_name(f"{self._trace.name}.{self._traces}")
        self._recording = Recording(
            trace, self._expected, lambda: [(pool, of_device) for pool, of_device, _ in self._pools]
        )
        self._traces += 1

    def do_stop(self) -> None:
        if self._recording is not None:
            self._recording.end()
            self._recording = None

    def do_check(self) -> None:
        if self._recording is not None:
            self._recording.check()

    def do_step(self) -> None:
        if self._recording is not None:
            self._recording.step()

    def do_snapshot(self) -> None:
        if self._recording is not None:
            assert self._recording.session.snapshot() or not torch.cuda.is_initialized()

    def do_flush(self) -> None:
        """End a block of the trace's file."""
        if self._recording is not None:
            self._recording.session.flush()

    # Blocks

    def _stream(self, device: int, number: int) -> torch.cuda.Stream:
        """Return a stream. During a capture on the device, 0 and 1 are the streams of the capture."""
        if device == self._capturing_device and number < 2:
            number += STREAMS
        if number == 0:
            return torch.cuda.default_stream(device)
        if (device, number) not in self._streams:
            self._streams[device, number] = torch.cuda.Stream(device)
        return self._streams[device, number]

    def _empty(self, size: int, device: int, number: int) -> None:
        with torch.cuda.stream(self._stream(device, number)), contextlib.suppress(torch.OutOfMemoryError):
            self._live.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}"))

    def do_allocate(self, size: int, device: int, stream: int) -> None:
        self._empty(size, device % self._devices, stream % STREAMS)

    def do_free(self, which: int) -> None:
        if self._live:
            del self._live[which % len(self._live)]

    def do_free_every(self, step: int) -> None:
        del self._live[:: step + 1]

    def do_free_while_used(self, which: int, stream: int) -> None:
        """Free a block that another stream still uses."""
        if not self._live:
            return
        tensor = self._live.pop(which % len(self._live))
        device, number = tensor.device.index, stream % STREAMS
        is_captured = device == self._capturing_device and number < 2
        if (simulator := simulated_device()) and not is_captured and (device, number) not in self._held_streams:
            with torch.cuda.device(device):
                simulator.simcuda_hold_stream(ctypes.c_void_p(self._stream(device, number).cuda_stream))
            self._held_streams.add((device, number))
        tensor.record_stream(self._stream(device, number))

    def do_release(self, device: int, stream: int) -> None:
        """Complete a stream's kernels, so that the next allocation completes the stream's frees."""
        key = (device % self._devices, stream % STREAMS)
        is_captured = key[0] == self._capturing_device and key[1] < 2
        if key in self._held_streams and not is_captured and (simulator := simulated_device()):
            with torch.cuda.device(key[0]):
                simulator.simcuda_release_stream(ctypes.c_void_p(self._stream(*key).cuda_stream))
            self._held_streams.discard(key)

    def do_use(self, which: int, stream: int) -> None:
        """Write to a block; in a capture, add a node to the graph."""
        if self._live:
            tensor = self._live[which % len(self._live)]
            with torch.cuda.stream(self._stream(tensor.device.index, stream % STREAMS)):
                tensor[:8].fill_(1)

    def do_wait(self, first: int) -> None:
        """Make one stream of a capture wait for the other, whose blocks may then be reused."""
        if (device := self._capturing_device) is not None:
            self._stream(device, first % 2).wait_stream(self._stream(device, 1 - first % 2))

    def do_synchronize(self, device: int) -> None:
        if self._capturing_device is None:
            torch.cuda.synchronize(device % self._devices)

    def do_empty_cache(self) -> None:
        if self._capturing_device is None:
            torch.cuda.empty_cache()

    def do_exhaust(self, size: int, device: int, keep_every: int) -> None:
        """Run out of memory, after at most 300 blocks, and free most blocks."""
        blocks: list[torch.Tensor] = []
        device %= self._devices
        _, total = torch.cuda.mem_get_info(device)
        with torch.cuda.device(device):
            exhaust(max(size, total // 300), blocks)
        self._live += blocks[:: keep_every + 2]

    def do_threads(self, steps: int) -> None:
        if self._capturing_device is None:
            try:
                threads(steps, count=3)
            except torch.OutOfMemoryError as error:
                del error
                gc.collect()  # frees the blocks that the error's frames hold

    # Settings

    def do_settings(self, text: str) -> None:
        # Some combinations raise after torch has applied a part of the settings, as after a user's mistake.
        with contextlib.suppress(ValueError):
            set_allocator_settings(text)

    def do_fraction(self, percent: int, device: int) -> None:
        torch.cuda.set_per_process_memory_fraction(percent / 100, device % self._devices)

    # Pools

    def do_make_pool(self, kind: str, device: int) -> None:
        """Create a pool of a kind: "plain", "no_split", "use_on_oom", or "own" (with its own allocator)."""
        device %= self._devices
        with torch.cuda.device(device):
            if kind == "own":
                library = alloctrace.pluggable_library()
                allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "alloctrace_malloc", "alloctrace_free")
                POOL_ALLOCATORS.append(allocator)
                pool = torch.cuda.MemPool(allocator.allocator())
            else:
                options = {} if kind == "plain" or (kind == "no_split" and not HAS_NO_SPLIT) else {kind: True}
                pool = torch.cuda.MemPool(**options)
        self._pools.append((pool, device, kind))

    def do_drop_pool(self, which: int) -> None:
        if self._pools and self._capturing_device is None:
            del self._pools[which % len(self._pools)]

    def do_allocate_in_pool(self, size: int, which: int, stream: int) -> None:
        if self._pools:
            pool, device, _ = self._pools[which % len(self._pools)]
            with torch.cuda.use_mem_pool(pool, device):
                self._empty(size, device, stream % STREAMS)

    # Graphs

    def _can_capture(self, device: int) -> bool:
        """Return whether a graph's random state fits into memory: torch crashes if it does not."""
        if self._capturing_device is not None:
            return False
        try:
            with torch.cuda.stream(self._stream(device, STREAMS)):
                torch.empty(4096, dtype=torch.uint8, device=f"cuda:{device}")
        except torch.OutOfMemoryError:
            return False
        return True

    @contextlib.contextmanager
    def _capturing(self, device: int, pool: Any) -> Iterator[None]:
        """Capture as torch.cuda.graph does, but do not collect garbage or empty the cache."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(device)
        self._capturing_device = device
        stream, fork = self._stream(device, 0), self._stream(device, 1)
        try:
            with torch.cuda.device(device), torch.cuda.stream(stream):
                graph.capture_begin(*(() if pool is None else (pool,)), capture_error_mode="relaxed")
                fork.wait_stream(stream)
                try:
                    yield
                finally:
                    stream.wait_stream(fork)
                    graph.capture_end()
        finally:
            self._capturing_device = None
        self._graphs.append((graph, device))

    def do_capture(self, device: int, share: int, operations: list[Operation]) -> None:
        """Capture a graph into a new pool (share 0), or into the pool of an earlier graph of the device."""
        device %= self._devices
        shared = [graph for graph, of_device in self._graphs if of_device == device]
        pool = shared[share % len(shared)].pool() if share and shared else None
        if self._can_capture(device):
            with self._capturing(device, pool):
                self._all(operations)

    def do_drop_graph(self, which: int) -> None:
        if self._graphs and self._capturing_device is None:
            self._graphs.pop(which % len(self._graphs))[0].reset()

    def do_checkpoint_pool(self, device: int, first: list[int], later: list[int], settings: str) -> None:
        """Restore a pool's state after a capture. In `first`, positive numbers are sizes, others free a block."""
        device %= self._devices
        if not self._can_capture(device):
            return
        outer_live, stale = self._live, []  # blocks outside the pool are unaffected
        pool = torch.cuda.graph_pool_handle()
        try:
            self._live = []
            with self._capturing(device, pool):
                for number in first:
                    if number > 0:
                        self._empty(number, device, 0)
                    else:
                        self.do_free(number)
            state = torch._C._cuda_getCheckpointState(device, pool)
            live = [(tensor.data_ptr(), tensor.untyped_storage().size()) for tensor in self._live]
            self._live = []
            self.do_check()
            self.do_settings(settings)
            if not self._can_capture(device):
                return
            with self._capturing(device, pool):
                for size in later:
                    self._empty(size, device, 0)
                self.do_check()
            stale = self._live
        finally:
            self._live = outer_live
        target = torch.device("cuda", device)
        restored = [torch._C._construct_storage_from_data_pointer(address, target, size) for address, size in live]
        stale_storages = [tensor.untyped_storage()._cdata for tensor in stale]
        torch._C._cuda_setCheckpointPoolState(device, state, stale_storages, [storage._cdata for storage in restored])
        self.do_check()


class UntracedMachine(Machine):
    """Interpreter of operations that records nothing."""

    def do_begin(self) -> None:
        pass


def run_program(
    trace: Path, expected: Path, operations: list[Operation], machine_type: type[Machine] = Machine
) -> None:
    machine = machine_type(trace, expected)
    try:
        machine.run(operations)
    finally:
        if alloctrace.is_enabled():
            alloctrace.disable()
        machine.clear()


ENDED, NOT_CLEAN = 10, 11
"""Exit statuses of a fork of `serve` that did not crash."""


def serve(machine_type: type[Machine]) -> None:
    """Answer each line with "error" (a text or null) and "clean" (whether the next program runs in the same fork)."""
    gc.disable()  # objects must die at the operation that frees them
    object_scans.MAX_FINAL_SCAN_S = 0.0  # referrer paths are not tested
    answers = sys.stdout
    sys.stdout = sys.stderr
    while (child := os.fork()) != 0:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == ENDED:
            return
        if status != NOT_CLEAN:
            print(json.dumps({"error": f"the process has ended: {status}", "clean": False}), file=answers, flush=True)
    for line in sys.stdin:
        program = json.loads(line)
        error = None
        try:
            run_program(Path(program["trace"]), Path(program["expected"]), program["operations"], machine_type)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        clean = not error and not snapshot()
        print(json.dumps({"error": error, "clean": clean}), file=answers, flush=True)
        if not clean:
            os._exit(NOT_CLEAN)
    os._exit(ENDED)


if __name__ == "__main__":
    serve(UntracedMachine if sys.argv[1] == "serve-untraced" else Machine)
