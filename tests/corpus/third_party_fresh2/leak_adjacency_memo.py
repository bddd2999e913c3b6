"""A graph network normalises the adjacency matrix of each random graph and remembers it in a default argument, though no graph comes twice."""

import itertools
import random
import sys
from typing import NamedTuple

import torch
from torch import nn


class Graph(NamedTuple):
    serial: int
    adjacency: torch.Tensor
    features: torch.Tensor


def normalised(graph, memo={}):
    if graph.serial not in memo:
        degree = graph.adjacency.sum(dim=1).clamp(min=1)
        scale = degree.rsqrt()
        memo[graph.serial] = scale[:, None] * graph.adjacency * scale[None, :]  # LEAK
    return memo[graph.serial]


class GCN(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, 1)

    def forward(self, graph):
        hidden = torch.relu(normalised(graph) @ self.first(graph.features))
        return (normalised(graph) @ self.second(hidden)).mean()


def random_graphs(device, rng):
    for serial in itertools.count():
        nodes = rng.randint(30, 90)
        adjacency = (torch.rand(nodes, nodes, device=device) < 0.1).float()
        yield Graph(serial, adjacency, torch.randn(nodes, 24, device=device))


def main():
    device = sys.argv[1]
    torch.manual_seed(43)
    torch.set_num_threads(1)
    network = GCN(24, 64).to(device)
    optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-3)
    graphs = random_graphs(device, random.Random(43))
    for graph in itertools.islice(graphs, 600):
        loss = (network(graph) - 0.5).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("last graph has", len(graph.features), "nodes")


if __name__ == "__main__":
    main()
