"""Programs that together use all features of torch's CUDA allocator.

Each takes a number of steps. No program reads a tensor's values: the simulated device computes none.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

MIB = 2**20


def simulated_device() -> ctypes.CDLL | None:
    """Return the library of the simulated device, or None on a real GPU."""
    library = ctypes.CDLL(None)
    return library if hasattr(library, "simcuda_hold_stream") else None


@contextlib.contextmanager
def work_pending_on(stream: torch.cuda.Stream) -> Iterator[None]:
    """Keep the stream's work pending inside the context. A real GPU may complete the work earlier."""
    library = simulated_device()
    handle = ctypes.c_void_p(stream.cuda_stream)
    if library:
        library.simcuda_hold_stream(handle)
    try:
        yield
    finally:
        if library:
            library.simcuda_release_stream(handle)


def set_allocator_settings(settings: str) -> None:
    """Apply settings in the format of PYTORCH_ALLOC_CONF, under any supported release of torch."""
    setter = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    setter(settings)


def reset_allocator_settings() -> None:
    """Restore the environment's settings. Each call resets all settings that it does not name."""
    set_allocator_settings(os.environ.get("PYTORCH_ALLOC_CONF") or "expandable_segments:False")


def give_back_everything() -> None:
    """Release all unused memory to the driver, and reset settings, so that the next program finds no segments."""
    gc.collect()
    reset_allocator_settings()
    torch._C._cuda_clearCublasWorkspaces()
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()


def block(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def mlp(steps: int) -> None:
    layers = (nn.Linear(256, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Dropout(0.1), nn.Linear(1024, 10))
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        train(model, optimizer, torch.randn(32 + step % 7 * 96, 256, device="cuda"))


def transformer(steps: int, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    for step in range(steps):
        with torch.autocast("cuda", dtype, cache_enabled=cache_enabled):
            loss = model(torch.randn(4, 16 + step % 5 * 16, 64, device="cuda")).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def convnet(steps: int) -> None:
    first = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(*first, *second, nn.Linear(32, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for step in range(steps):
        train(model, optimizer, torch.randn(8, 3, 32 + step % 3 * 32, 32, device="cuda"))
        if step % 10 == 9:
            model.eval()
            with torch.no_grad():
                model(torch.randn(64, 3, 64, 64, device="cuda"))
            model.train()


def streams(steps: int) -> None:
    """Make frees wait for other streams, complete them by later allocations, and move blocks between streams."""
    side, third = torch.cuda.Stream(), torch.cuda.Stream()
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        with work_pending_on(side), work_pending_on(third):
            x = torch.empty(1000 + step * 321 % 40_000, device="cuda")
            for stream in (side, third)[: 1 + step % 2]:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    y = x + 1
                    large = torch.empty(3 * MIB + step % 4 * MIB, dtype=torch.uint8, device="cuda")
                x.record_stream(stream)
                y.record_stream(torch.cuda.current_stream())
                large.record_stream(third)
            del x, y, large
            tensors += [torch.empty(500 * (index + 1), device="cuda") for index in range(4)]
        tensors = tensors[-6:]
        if step % 25 == 24:
            torch.cuda.synchronize()


def two_devices(steps: int) -> None:
    lower = nn.Sequential(nn.Linear(128, 512), nn.ReLU()).to("cuda:0")
    upper = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 4)).to("cuda:1")
    optimizer = torch.optim.AdamW([*lower.parameters(), *upper.parameters()])
    for step in range(steps):
        hidden = lower(torch.randn(16 + step % 3 * 100, 128, device="cuda:0"))
        loss = upper(hidden.to("cuda:1", non_blocking=True)).square().mean()
        hidden.detach().record_stream(torch.cuda.Stream(device=0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.cuda.device(1):
            torch.empty(step % 9 * 100_000 + 1, device="cuda")


def expandable_segments(steps: int) -> None:
    """Switch expandable segments on and off, with empty_cache between; reset the settings at the end."""
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        set_allocator_settings(f"expandable_segments:{step // 4 % 2 == 0}")
        tensors += [torch.empty(size * MIB + step * 512, dtype=torch.uint8, device="cuda") for size in (0, 1, 3, 25, 7)]
        tensors += [torch.empty(700 * (index + 1), device="cuda") for index in range(8)]
        del tensors[::2]
        if step % 5 == 4:
            torch.cuda.empty_cache()
    reset_allocator_settings()


def memory_pools(steps: int) -> None:
    """Use pools of three kinds: default, no_split and use_on_oom."""
    pools = [torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True), torch.cuda.MemPool(use_on_oom=True)]
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        with torch.cuda.use_mem_pool(pools[step % 3]):
            tensors += [torch.empty(size + step % 11 * 1000, device="cuda") for size in (10, 5000, 400_000, 3_000_000)]
            with torch.cuda.stream(torch.cuda.Stream()):
                tensors.append(torch.empty(77_000, device="cuda"))
        tensors += [torch.empty(1000 + step, device="cuda")]
        tensors = tensors[-7:]
        if step % 20 == 19:
            pools[step // 20 % 3] = torch.cuda.MemPool(no_split=step % 40 == 19)
            torch.cuda.empty_cache()
    tensors.clear()


def graphs(steps: int, checkpoints: bool = True) -> None:
    """Capture graphs with private pools, and restore pools to checkpoints, which frees blocks in order of address."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    static = torch.randn(32, 64, device="cuda")
    for step in range(steps):
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            output = model(static) + model(static * 2)
            torch.empty(100 + step * 2000 % 3_000_000, device="cuda")
        for _ in range(5):
            graph.replay()
            output.sum().add_(torch.ones(10 + step, device="cuda").sum())
        if step % 3 == 0:
            second = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(second, pool=graph.pool()):
                model(output)
            second.replay()
            del second
        del graph, output
        if step % 4 == 0:
            graphed = torch.cuda.make_graphed_callables(nn.Linear(64, 64).cuda(), (static.clone().requires_grad_(),))
            for _ in range(4):
                graphed(static.clone().requires_grad_()).sum().backward()
            del graphed
        if checkpoints and step % 4 == 2:
            checkpointed_pool()
            torch.cuda.empty_cache()


def checkpointed_pool() -> None:
    """Restore a pool to the state of an earlier capture, as trees of graphs do: later blocks are dropped."""
    graph, later = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    device = torch.cuda.current_device()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        alive, dropped = torch.empty(1000, device="cuda"), torch.empty(700_000, device="cuda")
        torch.empty(300, device="cuda")
    state = torch._C._cuda_getCheckpointState(device, pool)
    address, size, unwanted = alive.data_ptr(), alive.untyped_storage().size(), dropped.data_ptr()
    del alive, dropped
    with torch.cuda.graph(later, pool=pool, stream=side):
        stale = [torch.empty(elements, device="cuda") for elements in (500, 90_000, 800_000)]
    # The call below restores both outputs of the first graph, and gives the storage `again` its deleter.
    again = torch._C._construct_storage_from_data_pointer(address, torch.device("cuda", device), size)
    stale_storages = [tensor.untyped_storage()._cdata for tensor in stale]
    torch._C._cuda_setCheckpointPoolState(device, state, stale_storages, [again._cdata])
    torch._C._cuda_cudaCachingAllocator_raw_delete(unwanted)
    del stale
    torch.empty(50_000, device="cuda")
    del again, graph, later


def empty_cache(steps: int) -> None:
    sizes = (10, 3000, 200_000, 300_000, 1_000_000, 6_000_000, 600_000)
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        tensors += [torch.empty(size + step, device="cuda") for size in sizes]
        del tensors[step % 3 :: 2]
        torch.cuda.empty_cache()
        tensors = tensors[-10:]


def exhaust(piece: int, tensors: list[torch.Tensor]) -> None:
    """Allocate until the device has no more memory."""
    try:
        while True:
            tensors.append(torch.empty(piece, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass


def out_of_memory(steps: int) -> None:
    """Run out of memory, free some, continue; finally with a use_on_oom pool."""
    free, _ = torch.cuda.mem_get_info()
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        exhaust(free // (9 + step % 23), tensors)
        del tensors[step % 2 :: 2]
        tensors += [torch.empty(1000 + step, device="cuda") for _ in range(10)]
        if step % 4 == 3:
            tensors.clear()
    tensors.clear()
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        torch.empty(free // 3, dtype=torch.uint8, device="cuda")
    for step in range(steps):
        exhaust(free // (11 + step % 5), tensors)
        tensors.clear()


def collected_segments(steps: int) -> None:
    """Let garbage_collection_threshold return old segments to the driver."""
    free, total = torch.cuda.mem_get_info()
    allowed = min(free, 2048 * MIB)
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    set_allocator_settings("garbage_collection_threshold:0.4")
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        piece = allowed // 16 + step % 7 * 6 * MIB
        tensors += [torch.empty(piece + index * 2 * MIB, dtype=torch.uint8, device="cuda") for index in range(4)]
        tensors += [torch.empty(30_000 * (step % 50 + 1), device="cuda") for _ in range(5)]
        if step % 10 == 9:
            exhaust(allowed // 7, tensors)
        tensors.clear()
    reset_allocator_settings()
    torch.cuda.set_per_process_memory_fraction(1.0)


def layout_settings(steps: int) -> None:
    """Change settings of rounding and splitting while the program runs."""
    choices = ("max_split_size_mb:32", "roundup_power2_divisions:4", "roundup_power2_divisions:[64:8,256:2,>:1]")
    tensors: list[torch.Tensor] = []
    for step in range(steps):
        if step % 8 == 0:
            set_allocator_settings(choices[step // 8 % 3])
        tensors += [
            torch.empty(size + step * 4099, dtype=torch.uint8, device="cuda")
            for size in (300, 70_000, 9 * MIB, 50 * MIB)
        ]
        tensors = tensors[-9:]
    tensors.clear()
    reset_allocator_settings()


def threads(steps: int, count: int = 4, stop: threading.Event | None = None) -> None:
    """Allocate in concurrent threads on all devices, and free other threads' tensors, until `stop` is set."""
    handed_over: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    errors: list[BaseException] = []

    def allocate(seed: int) -> None:
        try:
            device = seed % torch.cuda.device_count()
            stream = torch.cuda.Stream(device=device)
            tensors: list[torch.Tensor] = []
            for step in range(steps):
                if stop is not None and stop.is_set():
                    break
                tensors.append(torch.empty(1 + (step * 7919 + seed * 31) % 9_000, device=f"cuda:{device}"))
                if step % 5 == 0:
                    tensors[-1].record_stream(stream)
                if step % 40 == 7:
                    tensors.append(torch.empty(step % 30 * MIB + 1, dtype=torch.uint8, device=f"cuda:{device}"))
                if step % 3 == 0:
                    handed_over.put(tensors.pop(0))
                if len(tensors) > 20:
                    tensors.pop(step % 20)
                    with contextlib.suppress(queue.Empty):
                        handed_over.get_nowait()
                if step % 500 == 499:
                    torch.cuda.empty_cache()
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=allocate, args=(seed,), name=f"worker-{seed}") for seed in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    while not handed_over.empty():
        handed_over.get()


@dataclass(frozen=True)
class Program:
    run: Callable[[int], None]
    steps: int
    """Number of steps for a run of seconds with thousands of events."""


PROGRAMS = {
    program.run.__name__: program
    for program in (
        Program(mlp, 60),
        Program(transformer, 8),
        Program(convnet, 40),
        Program(streams, 60),
        Program(two_devices, 40),
        Program(expandable_segments, 60),
        Program(memory_pools, 120),
        Program(graphs, 24),
        Program(empty_cache, 60),
        Program(out_of_memory, 40),
        Program(collected_segments, 60),
        Program(layout_settings, 60),
        Program(threads, 1000),
    )
}
