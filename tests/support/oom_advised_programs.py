"""The programs of oom_programs.py, each changed as its verdict advises, so that none may run out of memory.

    python oom_advised_programs.py TRACE_FOLDER CASE...

Functions have the original names and quote the advice. CASE=SETTING runs the original program under an advised
allocator setting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import oom_programs
import torch
from cuda_programs import set_allocator_settings
from oom_programs import GIB, MIB, OTHER, PLAIN

import pytorch_alloctrace as alloctrace


def block(size: int, device: str = PLAIN) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def hold_all(*sizes: int) -> None:
    """Allocate blocks that are all held at once."""
    held = [block(size) for size in sizes]
    del held


def one_at_a_time(*sizes: int) -> None:
    for size in sizes:
        block(size)


def in_one_pool(*sizes: int) -> None:
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        one_at_a_time(*sizes)


def full_by_activations() -> None:
    """ "a smaller batch" """
    weights = [torch.empty(4096, 4096, device=PLAIN, requires_grad=True) for _ in range(12)]
    alloctrace.step()
    x = torch.empty(16384, 4096, device=PLAIN)
    for weight in weights:
        x = (x @ weight).relu()


def full_by_weights() -> None:
    """ "lower precision" """
    weights = [block(300 * MIB) for _ in range(11)]
    for _ in range(4):
        alloctrace.step()
    weights.append(block(300 * MIB))
    block(450 * MIB)


def full_by_a_leak() -> None:
    """ "if that is not intended, it is a leak" """
    for _ in range(40):
        hold_all(300 * MIB, 600 * MIB)
        alloctrace.step()


def long_lived_first(count: int = 5, size: int = GIB, request: int = 3 * GIB) -> None:
    """ "allocate long-lived memory before large memory" """
    kept = [block(12 * MIB) for _ in range(count)]
    one_at_a_time(*[size] * count, request)
    del kept


def fragmented_with_max_split_size() -> None:
    """ "allocate long-lived memory before large memory" """
    set_allocator_settings("max_split_size_mb:900")
    long_lived_first(12, 512 * MIB, 2 * GIB)


def fragmented_below_a_memory_fraction() -> None:
    """ "allocate long-lived memory before large memory" """
    torch.cuda.set_per_process_memory_fraction(0.5)
    long_lived_first(3, GIB, 2 * GIB)


def cache_in_a_private_pool() -> None:
    """ "delete pool" """
    in_one_pool(5 * GIB)
    block(4 * GIB)


def cache_in_a_pool_that_is_held() -> None:
    """ "or allocate both from one pool" """
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        held = block(64 * MIB)
        one_at_a_time(5 * GIB, 4 * GIB)
    del held


def cache_of_a_graph() -> None:
    """ "delete pool (its MemPool, the CUDA graphs captured into it)" """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = block(5 * GIB)
        batch.zero_()
        del batch
    del graph
    block(4 * GIB)


def cache_outside_of_the_pool_in_use() -> None:
    """ "torch.cuda.empty_cache() before the pool is used" """
    block(5 * GIB)
    torch.cuda.empty_cache()
    in_one_pool(4 * GIB)


def cache_of_another_stream() -> None:
    """ "allocate on one stream" """
    block(5 * GIB)
    hold_all(12 * MIB, 4 * GIB)


def memory_fraction() -> None:
    """ "raise the limit" """
    torch.cuda.set_per_process_memory_fraction(0.7)
    hold_all(3 * GIB, 2 * GIB)


def memory_fraction_set_late() -> None:
    """ "raise the limit" """
    block(6 * GIB)
    torch.cuda.empty_cache()
    memory_fraction()


def expandable_full() -> None:
    """ "a smaller batch" """
    set_allocator_settings("expandable_segments:True")
    hold_all(*[350 * MIB] * 11)


def one_of_two_devices() -> None:
    """ "a smaller batch" """
    held = [block(GIB), block(3 * GIB, OTHER), block(GIB, OTHER)]
    del held


def in_backward() -> None:
    """ "a smaller batch" """
    weight = torch.empty(32768, 8192, device=PLAIN, requires_grad=True)
    x = torch.empty(4, 8192, device=PLAIN)
    y = x @ weight.t()
    kept = block(3 * GIB)
    y.backward(torch.empty_like(y))
    del kept


def nearly_full() -> None:
    """ "a smaller batch" """
    kept = []
    for _ in range(7):
        block(500 * MIB)
        kept.append(block(480 * MIB))
    block(450 * MIB)


def under(case: str, setting: str) -> Callable[[], None]:
    """The program as it is, under a setting that it does not name itself."""

    def run() -> None:
        def with_advice(settings: str) -> None:
            set_allocator_settings(f"{settings},{setting}")

        oom_programs.set_allocator_settings = with_advice
        try:
            set_allocator_settings(setting)
            getattr(oom_programs, case)()
        finally:
            oom_programs.set_allocator_settings = set_allocator_settings

    return run


PROGRAMS: dict[str, Callable[[], None]] = {
    "fragmented": long_lived_first,
    # "a device that nothing else uses"
    "another_process": lambda: hold_all(GIB, 2 * GIB),
    "outside_of_pytorch": lambda: hold_all(GIB, 3 * GIB),
    # "smaller requests (a smaller batch, chunks)"
    "larger_than_the_device": lambda: one_at_a_time(3 * GIB, 3 * GIB, 3 * GIB),
    # "freeing earlier what these lines hold"
    "caught_and_recovered": lambda: one_at_a_time(6 * GIB, 3 * GIB),
}
"""The others are functions of this module."""

if __name__ == "__main__":
    for name in sys.argv[2:]:
        case, _, setting = name.partition("=")
        oom_programs.run(
            name, under(case, setting) if setting else PROGRAMS.get(case) or globals()[case], Path(sys.argv[1])
        )
