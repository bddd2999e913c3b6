"""Trains on trees; each tree has parent links, so it goes only when the collector runs, whose thresholds are raised for speed."""

import gc
import random
import sys

import torch
from torch import nn


class Node:
    def __init__(self, parent, vector):
        self.parent = parent
        self.vector = vector
        self.children = []
        if parent is not None:
            parent.children.append(self)


class TreeModel(nn.Module):
    def __init__(self, width=64, classes=3):
        super().__init__()
        self.join = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, classes)

    def fold(self, node):
        if not node.children:
            return node.vector
        below = torch.stack([self.fold(child) for child in node.children]).mean(dim=0)
        return torch.tanh(self.join(torch.cat([node.vector, below], dim=-1)))

    def forward(self, root):
        return self.out(self.fold(root))


def make_tree(rng, centers, label, batch, device):
    def vector():
        return centers[label] + 0.8 * torch.randn(batch, centers.shape[1], device=device)

    root = Node(None, vector())
    nodes = [root]
    for _ in range(rng.randint(4, 9)):
        nodes.append(Node(rng.choice(nodes), vector()))
    return root


def main():
    device = sys.argv[1]
    torch.manual_seed(45)
    torch.set_num_threads(1)
    rng = random.Random(45)
    gc.set_threshold(6000, 5, 5)
    model = TreeModel().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    centers = torch.randn(3, 64, device=device) / 4
    right = 0
    steps = 900
    for _ in range(steps):
        label = rng.randrange(3)
        logits = model(make_tree(rng, centers, label, 16, device))
        loss = nn.functional.cross_entropy(logits, torch.full((16,), label, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += (logits.argmax(dim=1) == label).sum().item()
    print(f"accuracy {right / (16 * steps):.3f}")


if __name__ == "__main__":
    main()
