"""Programs recorded by alloctrace and by torch's history: `snapshot_pairs.py leak|out_of_memory|healthy|previews`."""

from __future__ import annotations

import contextlib
import sys

import torch

import pytorch_alloctrace as alloctrace

MIB = 2**20


def train(*, keep: bool) -> list[torch.Tensor]:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(60):
        batch = torch.randn(64, 512, device="cuda")
        hidden = model(batch)
        loss = hidden.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if keep:
            losses.append(hidden.detach() + 1)  # THE LEAK
    return losses


def run_out_of_memory() -> list[torch.Tensor]:
    """Free every second block of 24 MiB: half of the memory is free, but no 48 MiB are contiguous."""
    held: list[torch.Tensor] = []
    free, _ = torch.cuda.mem_get_info()
    for _ in range(free // (96 * MIB)):
        arena = torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")
        del arena
        for _ in range(4):
            held.append(torch.empty(24 * MIB, dtype=torch.uint8, device="cuda"))
    del held[::2]
    with contextlib.suppress(torch.OutOfMemoryError):
        held.append(torch.empty(96 * MIB, dtype=torch.uint8, device="cuda"))
    return held


def preview() -> list[torch.Tensor]:
    """Train, then call the model again and again without backward until memory runs out."""
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(512, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    frames = [torch.randn(4096, 1024, device="cuda")]
    with contextlib.suppress(torch.OutOfMemoryError):
        while True:
            frames.append(frames[-1] - model(frames[-1]))  # THE FORWARDS
    return frames


if __name__ == "__main__":
    alloctrace.enable("run.alloctrace", devices=["cuda"])
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    programs = {"out_of_memory": run_out_of_memory, "previews": preview}
    kept = programs[sys.argv[1]]() if sys.argv[1] in programs else train(keep=sys.argv[1] == "leak")
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    alloctrace.disable()
