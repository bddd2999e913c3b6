"""Trains with checkpoints of the five best steps: a heap says which one is the worst of them.

What leaves the heap is only the score and the name; the weights stay in the dictionary.
"""

import heapq
import random
import sys

import torch
from torch import nn


class BestCheckpoints:
    def __init__(self, keep):
        self.keep = keep
        self.heap = []
        self.states = {}

    def consider(self, score, name, model):
        if len(self.heap) == self.keep and score <= self.heap[0][0]:
            return
        self.states[name] = {key: value.detach().clone() for key, value in model.state_dict().items()}  # LEAK
        heapq.heappush(self.heap, (score, name))
        if len(self.heap) > self.keep:
            heapq.heappop(self.heap)

    def names(self):
        return [name for _score, name in sorted(self.heap, reverse=True)]


class Autoencoder(nn.Module):
    def __init__(self, inner=24):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, inner))
        self.decode = nn.Sequential(nn.Linear(inner, 64), nn.ReLU(), nn.Linear(64, 100))

    def forward(self, x):
        return self.decode(self.encode(x))


def main():
    device = sys.argv[1]
    torch.manual_seed(51)
    torch.set_num_threads(1)
    rng = random.Random(51)
    model = Autoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    best = BestCheckpoints(keep=5)
    for step in range(450):
        x = torch.randn(20, 100, device=device)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            # A stand-in for a validation score, which improves with noise.
            score = step + rng.uniform(0, 60)
            best.consider(score, f"step-{step}", model)  # LEAK
    print(f"best {best.names()[0]}, {len(best.states)} states in memory")


if __name__ == "__main__":
    main()
