"""Watches a deployed model: a reservoir holds a fair sample of 80 of the activations seen so far.

While it fills, memory grows; later an element is replaced now and then, ever more rarely.
"""

import random
import sys

import torch
from torch import nn


class Reservoir:
    def __init__(self, size, rng):
        self.size = size
        self.rng = rng
        self.items = []
        self.offered = 0

    def offer(self, make):
        self.offered += 1
        if len(self.items) < self.size:
            self.items.append(make())
            return
        place = self.rng.randrange(self.offered)
        if place < self.size:
            self.items[place] = make()

    def statistics(self):
        stacked = torch.stack(self.items)
        return stacked.mean(dim=0), stacked.std(dim=0)


class Model(nn.Module):
    def __init__(self, reservoir):
        super().__init__()
        self.lower = nn.Linear(64, 512)
        self.upper = nn.Linear(512, 8)
        self.reservoir = reservoir

    def forward(self, x):
        hidden = torch.relu(self.lower(x))
        self.reservoir.offer(lambda: hidden.detach()[:4].clone())
        return self.upper(hidden)


def main():
    device = sys.argv[1]
    torch.manual_seed(62)
    torch.set_num_threads(1)
    reservoir = Reservoir(80, random.Random(62))
    model = Model(reservoir).to(device)
    reports = 0
    with torch.no_grad():
        for request in range(900):
            model(torch.randn(16, 64, device=device))
            if request % 150 == 149:
                reservoir.statistics()
                reports += 1
    print(f"{reservoir.offered} offered, {len(reservoir.items)} held, {reports} reports")


if __name__ == "__main__":
    main()
