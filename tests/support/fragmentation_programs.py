"""Programs with fragmented memory and a planted pinner: a line, marked PIN, whose blocks strand free memory.

    fragmentation_programs.py FOLDER CASE...

records CASE.alloctrace until the memory is fragmented, and writes CASE.json: torch's segments at that time, the
bytes that empty_cache() released, and the bytes that it released after the planted blocks were freed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from cuda_programs import give_back_everything, set_allocator_settings, work_pending_on

import pytorch_alloctrace as alloctrace

MIB, GIB = 2**20, 2**30

Program = Iterator[list[torch.Tensor]]
"""Iterator that yields the list of planted blocks when the memory is fragmented."""


def result_of_each_batch() -> Program:
    """Keep a small result of each batch, in the memory of the previous batch."""
    planted, fillers = [], []
    for _ in range(5):
        batch = torch.empty(1200 * MIB, dtype=torch.uint8, device="cuda")
        del batch
        planted.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))  # PIN
        fillers.append(torch.empty(1198 * MIB, dtype=torch.uint8, device="cuda"))
    del fillers
    yield planted


def one_among_many() -> Program:
    """Keep one small block in a large segment, next to many harmless ones and much memory in use."""
    model = [torch.empty(600 * MIB, dtype=torch.uint8, device="cuda") for _ in range(8)]
    batch = torch.empty(1200 * MIB, dtype=torch.uint8, device="cuda")
    harmless, temporary = [], []
    for _ in range(10):
        harmless.append(torch.empty(8 * MIB, dtype=torch.uint8, device="cuda"))
        temporary.append(torch.empty(12 * MIB, dtype=torch.uint8, device="cuda"))
    del temporary, batch
    alloctrace.step()
    planted = [torch.empty(13 * MIB, dtype=torch.uint8, device="cuda")]  # PIN
    alloctrace.step()
    yield planted
    del model, harmless


def small_tensors() -> Program:
    """Keep one tensor of 4 KiB in each segment of the small pool: 512 fit into one."""
    planted, temporary = [], []
    for number in range(40 * 512):
        if number % 512 == 100:
            planted.append(torch.empty(4096, dtype=torch.uint8, device="cuda"))  # PIN
        else:
            temporary.append(torch.empty(4096, dtype=torch.uint8, device="cuda"))
    del temporary
    yield planted


def units_of_an_expandable_segment() -> Program:
    """Keep a block in every third mapping unit: the remainder of these units cannot be unmapped."""
    set_allocator_settings("expandable_segments:True")
    planted, temporary = [], []
    for _ in range(30):
        planted.append(torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"))  # PIN
        temporary.append(torch.empty(57 * MIB, dtype=torch.uint8, device="cuda"))
    del temporary
    yield planted


def private_pool() -> Program:
    pool = torch.cuda.MemPool()
    outside = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    planted, fillers = [], []
    with torch.cuda.use_mem_pool(pool):
        for _ in range(3):
            batch = torch.empty(800 * MIB, dtype=torch.uint8, device="cuda")
            del batch
            planted.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))  # PIN
            fillers.append(torch.empty(770 * MIB, dtype=torch.uint8, device="cuda"))
    del fillers
    yield planted
    del outside, pool


def gradient() -> Program:
    """Pin by a gradient, which autograd's thread allocates for a line of forward."""
    weight = torch.empty(4096, 4096, device="cuda", requires_grad=True)
    x = torch.empty(16, 4096, device="cuda")
    # Allocates the cuBLAS workspaces of this thread and autograd's in segments of their own.
    small = torch.empty(4096, 4, device="cuda", requires_grad=True)
    (x @ small).sum().backward()
    y = x @ weight  # PIN
    batch = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del batch
    y.backward(torch.empty_like(y))
    gradients = [weight.grad]
    weight.grad = None
    del y
    yield gradients
    del x, weight


def awaited_by_a_stream() -> Program:
    """Pin by a freed block that another stream still uses."""
    batch = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del batch
    side = torch.cuda.Stream()
    with work_pending_on(side):
        used = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")  # PIN
        used.record_stream(side)
        with torch.cuda.stream(side):
            used.zero_()
        del used
        yield []


def _allocate_at_random() -> Program:
    dice = random.Random(4)
    streams = [torch.cuda.Stream(), torch.cuda.default_stream()]
    tensors: list[torch.Tensor] = []
    for _ in range(1500):
        size = dice.choice([dice.randrange(1, MIB), dice.randrange(MIB, 12 * MIB), dice.randrange(MIB, 90 * MIB)])
        with torch.cuda.stream(dice.choice(streams)):
            tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        while sum(tensor.nbytes for tensor in tensors) > GIB or (dice.random() < 0.4 and len(tensors) > 1):
            tensors.pop(dice.randrange(len(tensors)))
    for _ in range(len(tensors) * 2 // 3):
        tensors.pop(dice.randrange(len(tensors)))
    yield tensors


def random_sizes() -> Program:
    yield from _allocate_at_random()


def random_sizes_expandable() -> Program:
    set_allocator_settings("expandable_segments:True")
    yield from _allocate_at_random()


def run(case: str, folder: Path) -> None:
    alloctrace.enable(folder / f"{case}.alloctrace", devices=("cuda",))
    program: Program = globals()[case]()
    planted = next(program)
    alloctrace.disable()
    segments = torch.cuda.memory_snapshot()
    reserved = [torch.cuda.memory_reserved()]
    for _ in range(2):
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved())
        planted.clear()
    for _ in program:
        pass
    released, released_later = reserved[0] - reserved[1], reserved[1] - reserved[2]
    measurements = {"segments": segments, "given_back": released, "given_back_without_planted": released_later}
    (folder / f"{case}.json").write_text(json.dumps(measurements))
    give_back_everything()


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run(name, Path(sys.argv[1]))
