"""Monte Carlo tree search over learned latent dynamics, with a fixed time budget a move."""
import gc
import math
import random
import time

import torch
import torch.nn as nn


class Dynamics(nn.Module):
    """Representation, transition and value head on a small board."""

    def __init__(self, planes=16, actions=8, board=8):
        super().__init__()
        self.actions, self.board = actions, board
        self.represent = nn.Conv2d(3, planes, 3, padding=1)
        self.transition = nn.Conv2d(planes + 1, planes, 3, padding=1)
        self.value = nn.Linear(planes * board * board, 1)

    def initial(self, observation):
        return torch.tanh(self.represent(observation))

    def step(self, latent, action):
        plane = torch.full_like(latent[:, :1], action / self.actions)
        return torch.tanh(self.transition(torch.cat([latent, plane], dim=1)))

    def predict(self, latent):
        flat = latent.flatten(1)
        return self.value(flat)


class Node:
    __slots__ = ("latent", "prior", "parent", "children", "visits", "total")

    def __init__(self, latent, prior, parent=None):
        self.latent = latent
        self.prior = prior
        self.parent = parent
        self.children = {}
        self.visits = 0
        self.total = 0.0

    def ucb(self, c=1.25):
        return c * self.prior * math.sqrt(self.parent.visits + 1) / (1 + self.visits)


class Planner:
    def __init__(self, model, simulations, seed):
        self.model = model
        self.simulations = simulations
        self.rng = random.Random(seed)

    def expand(self, node, action, prior):
        latent = self.model.step(node.latent, action)
        child = Node(latent, prior, parent=node)
        node.children[action] = child
        return child

    def backup(self, node, value):
        while node is not None:
            node.visits += 1
            node.total += value
            node = node.parent

    @torch.no_grad()
    def choose(self, observation):
        root = Node(self.model.initial(observation.cuda()), 1.0)
        for _ in range(self.simulations):
            node = root
            while len(node.children) == self.model.actions:
                node = max(node.children.values(), key=lambda n: n.ucb() + 1e-6 * self.rng.random())
            action = self.rng.choice([a for a in range(self.model.actions) if a not in node.children])
            child = self.expand(node, action, 1.0 / self.model.actions)
            self.backup(child, self.model.predict(child.latent).item())
        best = max(root.children, key=lambda a: root.children[a].visits)
        return best, root.children[best].total / root.children[best].visits


class Board:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.state = torch.zeros(1, 3, 8, 8)

    def play(self, action):
        self.state = torch.roll(self.state, shifts=action, dims=-1)
        self.state = self.state + 0.1 * torch.randn(self.state.shape, generator=self.g)


def main():
    torch.manual_seed(0)
    model = Dynamics().cuda().eval()
    planner = Planner(model, simulations=24, seed=1)
    board = Board(seed=1)
    # moves have a hard deadline
    gc.collect()
    gc.disable()
    slowest = 0.0
    for move in range(1, 161):
        begin = time.perf_counter()
        action, value = planner.choose(board.state)
        slowest = max(slowest, time.perf_counter() - begin)
        board.play(action)
        if move % 40 == 0:
            print(f"move {move}: action {action}, value {value:.2f}, slowest decision {1e3 * slowest:.0f} ms")
    gc.enable()


if __name__ == "__main__":
    main()
