"""Trains a basecaller on nanopore reads; a batch holds reads of one pore."""
import math
import random

import torch
from torch import nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.ff = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        x = x + self.proj((weight @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.ff(self.norm2(x))


class Basecaller(nn.Module):
    def __init__(self, width=256, depth=6, heads=4):
        super().__init__()
        self.squiggle = nn.Conv1d(1, width, 19, stride=5, padding=9)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.bases = nn.Linear(width, 5)

    def forward(self, signal):
        x = self.squiggle(signal).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.bases(x)


class PoreReads:
    """Raw current of reads; read lengths follow the log-normal shape of a real flow cell."""

    def __init__(self, seed, longest=9000, per_batch=4):
        self.rng = random.Random(seed)
        self.longest = longest
        self.per_batch = per_batch

    def length(self):
        return int(min(self.longest, max(600, self.rng.lognormvariate(8.0, 0.7))))

    def epoch(self, batches):
        """Short reads are the cleaner ones, so each epoch begins with them."""
        lengths = sorted(self.length() for _ in range(batches))
        for length in lengths:
            yield torch.full((self.per_batch, 1, length), self.rng.random())


class Trainer:
    def __init__(self, device, steps):
        self.device = device
        self.steps = steps
        self.model = Basecaller().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4)

    def step(self, signal):
        scores = self.model(signal.to(self.device))
        target = torch.zeros(scores.shape[:2], dtype=torch.long, device=self.device)
        loss = F.cross_entropy(scores.transpose(1, 2), target)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def fit(self, reads):
        for number, signal in enumerate(reads.epoch(self.steps), 1):
            loss = self.step(signal)
            if number % 25 == 0:
                print(f"step {number} length {signal.shape[-1]} loss {loss:.3f} "
                      f"reserved {torch.cuda.memory_reserved() >> 20} MiB", flush=True)


def main():
    torch.manual_seed(2)
    Trainer(torch.device("cuda"), steps=200).fit(PoreReads(seed=2))


if __name__ == "__main__":
    main()
