"""Trains on sampled neighbourhoods of a graph. The features of the 200 busiest nodes are cached.

The cache is filled on demand and saturates in the first third of the run.
"""

import random
import sys

import torch
from torch import nn


class Graph:
    def __init__(self, nodes, width, rng):
        self.features = torch.randn(nodes, width)
        self.neighbours = []
        for node in range(nodes):
            # Low numbers have more neighbours, as hubs do.
            self.neighbours.append([int(nodes * rng.random() ** 2.5) for _ in range(6)] + [node])


class FeatureStore:
    def __init__(self, graph, hubs, device):
        self.graph = graph
        self.hubs = hubs
        self.device = device
        self.cache = {}

    def get(self, node):
        if node in self.cache:
            return self.cache[node]
        features = self.graph.features[node].to(self.device, copy=True)
        if node < self.hubs:
            self.cache[node] = features
        return features

    def mean_of(self, nodes):
        return torch.stack([self.get(node) for node in nodes]).mean(dim=0)


class SageNet(nn.Module):
    def __init__(self, width, classes=6):
        super().__init__()
        self.own = nn.Linear(width, 48)
        self.around = nn.Linear(width, 48)
        self.out = nn.Linear(48, classes)

    def forward(self, own, around):
        return self.out(torch.relu(self.own(own) + self.around(around)))


def main():
    device = sys.argv[1]
    torch.manual_seed(86)
    torch.set_num_threads(1)
    rng = random.Random(86)
    graph = Graph(2000, 512, rng)
    store = FeatureStore(graph, hubs=200, device=device)
    model = SageNet(512).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _step in range(350):
        nodes = rng.sample(range(2000), 12)
        own = torch.stack([store.get(node) for node in nodes])
        around = torch.stack([store.mean_of(rng.sample(graph.neighbours[node], 3)) for node in nodes])
        loss = nn.functional.cross_entropy(model(own, around), torch.randint(0, 6, (12,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(store.cache)} nodes cached")


if __name__ == "__main__":
    main()
