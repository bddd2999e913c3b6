"""A recursive network on parse trees whose nodes know their parents; the cycles are collected every forty trees, as the automatic collector is off."""

import gc
import random
import sys

import torch
from torch import nn


class Node:
    def __init__(self, parent=None):
        self.parent = parent
        self.children = []
        self.state = None

    def grow(self, depth, rng):
        if depth and rng.random() < 0.9:
            self.children = [Node(self), Node(self)]
            for child in self.children:
                child.grow(depth - 1, rng)
        return self


class TreeNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.compose = nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, node, device):
        if node.children:
            states = [self(child, device) for child in node.children]
            node.state = torch.tanh(self.compose(torch.cat(states, dim=1)))
        else:
            node.state = torch.randn(4, self.width, device=device)
        return node.state


def main():
    device = sys.argv[1]
    torch.manual_seed(167)
    torch.set_num_threads(1)
    rng = random.Random(167)
    network = TreeNet(64).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    gc.disable()
    for number in range(400):
        root = Node().grow(3, rng)
        loss = network.score(network(root, device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 40 == 39:
            del root, loss
            gc.collect()
    gc.enable()
    print("400 trees learnt")


if __name__ == "__main__":
    main()
