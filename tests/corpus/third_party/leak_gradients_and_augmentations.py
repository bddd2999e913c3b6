"""Trains a classifier on augmented samples, with statistics of the gradients.

Two leaks: the gradients of every step are kept, and the cache of augmented samples has the epoch in its key.
"""

import random
import sys

import torch
from torch import nn


class AugmentedDataset:
    def __init__(self, size, device):
        self.raw = torch.randn(size, 512)
        self.device = device
        self.cache = {}

    def sample(self, index, epoch):
        key = (index, epoch)
        if key not in self.cache:
            noise = torch.randn(512, generator=torch.Generator().manual_seed(index * 1000 + epoch))
            self.cache[key] = (self.raw[index] + 0.1 * noise).to(self.device)  # LEAK 2
        return self.cache[key]


class GradientStatistics:
    def __init__(self, parameter):
        self.parameter = parameter
        self.history = []

    def record(self):
        self.history.append(self.parameter.grad.clone())  # LEAK 1

    def variance(self):
        return torch.stack(self.history[-10:]).var(dim=0).mean()


def main():
    device = sys.argv[1]
    torch.manual_seed(4)
    torch.set_num_threads(1)
    rng = random.Random(4)
    data = AugmentedDataset(256, device)
    model = nn.Sequential(nn.Linear(512, 24), nn.ReLU(), nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    statistics = GradientStatistics(model[2].weight)
    hidden_statistics = GradientStatistics(model[0].weight)
    for epoch in range(10):
        order = list(range(256))
        rng.shuffle(order)
        for start in range(0, 256, 16):
            indices = order[start : start + 16]
            batch = torch.stack([data.sample(i, epoch) for i in indices])  # LEAK 2
            labels = torch.tensor([i % 3 for i in indices], device=device)
            loss = nn.functional.cross_entropy(model(batch), labels)
            optimizer.zero_grad()
            loss.backward()
            statistics.record()  # LEAK 1
            hidden_statistics.record()  # LEAK 1
            optimizer.step()
        print(epoch, float(statistics.variance()), float(hidden_statistics.variance()))


if __name__ == "__main__":
    main()
