"""A server that collects garbage by itself, after every 60 requests, to have no pauses in between.

Each request is part of a reference cycle, so its tensors stay until then; nothing stays longer.
"""

import gc
import random
import sys

import torch
from torch import nn


class Node:
    def __init__(self, name, parent=None):
        self.name = name
        self.parent = parent
        self.children = []
        self.value = None
        if parent is not None:
            parent.children.append(self)


class PlanExecutor:
    """Runs a plan of a request: a tree of operators that know their parent."""

    def __init__(self, device):
        self.device = device
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(3)).to(device)

    def plan(self, leaves):
        root = Node("merge")
        for number in range(leaves):
            Node(f"leaf-{number}", root)
        return root

    @torch.no_grad()
    def run(self, root, rows):
        for number, leaf in enumerate(root.children):
            leaf.value = torch.relu(self.layers[number % 3](torch.randn(rows, 96, device=self.device)))
        root.value = torch.stack([leaf.value for leaf in root.children]).amax(dim=0)
        return root.value.mean(dim=0)


def main():
    torch.manual_seed(65)
    torch.set_num_threads(1)
    rng = random.Random(65)
    executor = PlanExecutor(sys.argv[1])
    gc.disable()
    gc.freeze()
    found = 0
    for request in range(900):
        root = executor.plan(leaves=rng.randint(2, 5))
        executor.run(root, rows=rng.randint(8, 24))
        del root
        if request % 60 == 59:
            found += gc.collect()
    gc.enable()
    print(f"{found} objects collected")


if __name__ == "__main__":
    main()
