"""Continual anomaly detection: a memory bank of patch features grows by torch.cat, each task keeps a coreset of it.

True cause: each torch.cat needs a block larger than all before, so the freed blocks of the old banks are never used
again for the bank; the coresets (55 % of the bank of their time) are then cut from those old blocks, and what remains of
each is pinned (empty_cache cannot release it) and too small for the next bank and the next coreset.
The line: `self.coresets.append(self.bank[chosen])` pins; `self.bank = torch.cat([self.bank, features])` makes the blocks.
Cure: reserve the bank once at its final size and fill it in place; keep indices instead of copies as coresets.
"""

import torch
from torch import nn


class PatchMemory:
    def __init__(self, dim, device):
        self.bank = torch.empty(0, dim, device=device)
        self.coresets = []

    def add(self, features):
        self.bank = torch.cat([self.bank, features])  # CAUSE

    def close_task(self, keep=0.55):
        count = int(len(self.bank) * keep)
        chosen = torch.randperm(len(self.bank))[:count].to(self.bank.device)
        self.coresets.append(self.bank[chosen])  # CAUSE

    def score(self, features, task):
        coreset = self.coresets[task]
        return torch.cdist(features, coreset[:512]).amin(dim=1)


class Backbone(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 8, stride=8)

    def forward(self, images):
        return self.patches(images).flatten(2).transpose(1, 2).flatten(0, 1)


def main(tasks=16, batches=6, dim=512, device="cuda"):
    torch.manual_seed(14)
    backbone = Backbone(dim).to(device).eval()
    memory = PatchMemory(dim, device)
    for task in range(tasks):
        torch.cuda.empty_cache()
        for _ in range(batches):
            images = torch.zeros(2, 3, 256, 256).to(device)
            memory.add(backbone(images))
        memory.close_task()
        scores = memory.score(backbone(torch.zeros(1, 3, 256, 256).to(device)), task)
        print(f"task {task}: bank {len(memory.bank)}, score {scores.mean().item():.3f}", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
