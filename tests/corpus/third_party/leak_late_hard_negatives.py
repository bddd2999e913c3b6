"""Metric learning that mines hard negatives once the easy phase is over.

From then on every step adds the mined embeddings to a pool that is sampled from but never trimmed.
"""

import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

import pytorch_alloctrace as alloctrace

EASY_STEPS = 220


class NegativePool:
    def __init__(self, seed):
        self.items = []
        self.rng = random.Random(seed)

    def add(self, anchors, candidates):
        with torch.no_grad():
            similarity = anchors @ candidates.T
            hardest = similarity.argmax(dim=1)
            self.items.append(candidates[hardest])  # LEAK

    def draw(self):
        return self.rng.choice(self.items)


def main():
    device = sys.argv[1]
    torch.manual_seed(13)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    pool = NegativePool(13)
    for step in range(400):
        anchors = torch.randn(40, 32, device=device)
        a = F.normalize(model(anchors), dim=1)
        p = F.normalize(model(anchors + 0.05 * torch.randn_like(anchors)), dim=1)
        n = p.roll(1, dims=0)
        loss = F.triplet_margin_loss(a, p, n)
        if step >= EASY_STEPS:
            pool.add(a.detach(), p.detach())  # LEAK
            loss = loss + 0.5 * F.triplet_margin_loss(a, p, pool.draw())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        alloctrace.step()
    print("hard negatives:", sum(len(i) for i in pool.items))


if __name__ == "__main__":
    main()
