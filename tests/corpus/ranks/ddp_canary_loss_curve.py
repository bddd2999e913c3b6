"""Data parallel training of a small classifier; one rank watches a fixed canary batch."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

CANARY_RANK = 1
STEPS = 110


class Net(nn.Module):
    def __init__(self, d_in=128, hidden=768, classes=10):
        super().__init__()
        self.fc1 = nn.Linear(d_in, hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x):
        h = F.gelu(self.fc1(x))
        return self.fc2(h)


def batches(rank, n, bs=48):
    g = torch.Generator().manual_seed(1000 + rank)
    for _ in range(n):
        x = torch.randn(bs, 128, generator=g)
        y = (x[:, :10].argmax(dim=1) + 1) % 10
        yield x, y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    canary_x, canary_y = next(batches(99, 1, bs=40))
    curve = []

    for step, (x, y) in enumerate(batches(rank, STEPS)):
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()

        if rank == CANARY_RANK:
            curve.append(F.cross_entropy(model.module(canary_x), canary_y))
            if step % 25 == 0:
                recent = sum(v.item() for v in curve[-10:]) / len(curve[-10:])
                print(f"[canary] step {step} loss {recent:.4f}", flush=True)

    if rank == CANARY_RANK:
        print("best canary loss", min(v.item() for v in curve))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
