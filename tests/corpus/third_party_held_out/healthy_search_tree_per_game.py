"""Self-play with a search tree that grows through a game and is dropped at its end.

A node knows its parent through a weak reference, so the tree of a game is freed at once.
"""

import random
import sys
import weakref

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class TreeNode:
    def __init__(self, parent, priors):
        self.parent = None if parent is None else weakref.ref(parent)
        self.priors = priors
        self.children = {}
        self.visits = 0

    def backup(self):
        node = self
        while node is not None:
            node.visits += 1
            node = None if node.parent is None else node.parent()


class Player:
    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.net = nn.Sequential(nn.Linear(200, 128), nn.ReLU(), nn.Linear(128, 361)).to(device)

    def priors(self):
        return self.net(torch.randn(200, device=self.device)).softmax(dim=0)

    def simulate(self, root):
        node = root
        while True:
            move = self.rng.randrange(6)
            if move not in node.children:
                child = node.children[move] = TreeNode(node, self.priors())
                child.backup()
                return
            node = node.children[move]

    @torch.no_grad()
    def play_game(self, moves, simulations):
        start = root = TreeNode(None, self.priors())
        for _ in range(moves):
            for _ in range(simulations):
                self.simulate(root)
            root = max(root.children.values(), key=lambda child: child.visits)
            alloctrace.step()
        return start.visits


def main():
    torch.manual_seed(94)
    torch.set_num_threads(1)
    rng = random.Random(94)
    player = Player(sys.argv[1], rng)
    visits = 0
    for _game in range(12):
        visits += player.play_game(moves=rng.randint(18, 32), simulations=14)
    print(f"{visits} visits in 12 games")


if __name__ == "__main__":
    main()
