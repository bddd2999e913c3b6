"""Composes sentence vectors over parse trees whose nodes know their parents.

The reference cycles hold the tensors until the garbage collector comes round, which the program asks for now and then.
"""

import gc
import random
import sys

import torch
from torch import nn


class Node:
    def __init__(self, parent=None):
        self.parent = parent
        self.children = []
        self.vector = None

    def add(self):
        child = Node(self)
        self.children.append(child)
        return child


def random_tree(rng, leaves):
    root = Node()
    ends = [root]
    while len(ends) < leaves:
        node = ends.pop(rng.randrange(len(ends)))
        ends += [node.add(), node.add()]
    return root


class Composer(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.width = width
        self.join = nn.Linear(2 * width, width)

    def forward(self, node, device):
        if node.children:
            parts = [self(child, device) for child in node.children]
            node.vector = torch.tanh(self.join(torch.cat(parts)))
        else:
            node.vector = torch.randn(self.width, device=device)
        return node.vector


@torch.no_grad()
def main():
    device = sys.argv[1]
    torch.manual_seed(10)
    torch.set_num_threads(1)
    rng = random.Random(10)
    composer = Composer().to(device)
    for sentence in range(240):
        composer(random_tree(rng, rng.randint(3, 14)), device)
        if sentence % 30 == 29:
            gc.collect()
    print("composed", sentence + 1)


if __name__ == "__main__":
    main()
