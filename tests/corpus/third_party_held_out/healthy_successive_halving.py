"""Successive halving: a bracket starts with many small trials and drops the worse half of them after each round."""

import random
import sys

import torch
from torch import nn


class Trial:
    def __init__(self, lr, hidden, device):
        self.device = device
        self.model = nn.Sequential(nn.Linear(32, hidden), nn.ReLU(), nn.Linear(hidden, 4)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.score = 0.0

    def train(self, steps):
        for _ in range(steps):
            inputs = torch.randn(16, 32, device=self.device)
            targets = torch.randint(0, 4, (16,), device=self.device)
            loss = nn.functional.cross_entropy(self.model(inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Bracket:
    def __init__(self, trials, rng):
        self.trials = trials
        self.rng = rng

    def run(self, steps):
        while len(self.trials) > 1:
            for trial in self.trials:
                trial.train(steps)
                # A stand-in for the accuracy.
                trial.score = self.rng.random()
            self.trials.sort(key=lambda trial: -trial.score)
            del self.trials[len(self.trials) // 2 :]
            steps += 1
        return self.trials[0]


def main():
    device = sys.argv[1]
    torch.manual_seed(76)
    torch.set_num_threads(1)
    rng = random.Random(76)
    best = None
    for _bracket in range(12):
        trials = [Trial(10 ** rng.uniform(-4, -2), rng.choice([64, 128, 192]), device) for _ in range(8)]
        winner = Bracket(trials, rng).run(steps=2)
        if best is None or winner.score > best.score:
            best = winner
        del trials, winner
    print(f"best score {best.score:.3f}")


if __name__ == "__main__":
    main()
