"""Self-play for 13x13 Hex with a learned model; positions go to a replay memory for training."""
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from hexzero.nets import HexModel
from hexzero.tree import Search

SIZE = 13
GAMES = 6
MOVES = 30
SIMULATIONS = 4


@dataclass
class Episode:
    moves: list = field(default_factory=list)
    latents: list = field(default_factory=list)
    visit_counts: list = field(default_factory=list)
    winner: int = 0

    def add(self, move, node):
        counts = np.zeros(SIZE * SIZE, dtype=np.float32)
        for m, ch in node.children.items():
            counts[m] = ch.visits
        self.moves.append(move)
        self.visit_counts.append(counts / max(counts.sum(), 1))
        self.latents.append(node.hidden)


class Replay:
    def __init__(self, capacity):
        self.capacity = capacity
        self.episodes = []

    def push(self, ep):
        self.episodes.append(ep)
        while sum(len(e.moves) for e in self.episodes) > self.capacity:
            self.episodes.pop(0)

    def sample(self, n, rng):
        latents, targets = [], []
        for _ in range(n):
            ep = self.episodes[rng.integers(len(self.episodes))]
            t = rng.integers(len(ep.moves))
            latents.append(ep.latents[t])
            targets.append(ep.visit_counts[t])
        return torch.stack(latents), torch.from_numpy(np.stack(targets))


@torch.no_grad()
def play(model, rng, device):
    search = Search(model, rng)
    board = torch.zeros(1, 3, SIZE, SIZE, device=device)
    legal = list(range(SIZE * SIZE))
    root = search.make_root(board)
    ep = Episode()
    for ply in range(MOVES):
        for _ in range(SIMULATIONS):
            search.simulate(root, legal)
        move, child = search.best(root)
        ep.add(move, root)
        legal.remove(move)
        board[0, ply % 2, move // SIZE, move % SIZE] = 1.0
        root = child
        root.children = {m: c for m, c in root.children.items() if m in legal}
    ep.winner = int(rng.integers(2)) * 2 - 1
    return ep


def learn(model, opt, replay, rng, device, batches=4):
    for _ in range(batches):
        latent, target = replay.sample(64, rng)
        logp = model.policy(latent).log_softmax(-1)
        loss = -(target.to(device) * logp).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.manual_seed(3)
    rng = np.random.default_rng(3)
    model = HexModel(SIZE).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    replay = Replay(capacity=20000)
    start = time.time()
    for g in range(GAMES):
        replay.push(play(model, rng, device))
        loss = learn(model, opt, replay, rng, device)
        stored = sum(len(e.moves) for e in replay.episodes)
        print(f"game {g:2d}  positions {stored:4d}  policy loss {loss:.4f}  {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main()
