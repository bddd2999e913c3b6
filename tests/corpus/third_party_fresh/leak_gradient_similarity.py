"""Trains one network on five tasks in turn and reports how well the gradients of the tasks agree.

Each comparison needs only the latest gradient of every task; the history of all of them is kept.
"""

import collections
import sys

import torch
from torch import nn

TASKS = 5


class GradientAgreement:
    def __init__(self, parameters, every):
        self.parameters = list(parameters)
        self.every = every
        self.seen = 0
        self.history = collections.defaultdict(list)

    def flat_gradient(self):
        pieces = [p.grad.reshape(-1) for p in self.parameters if p.grad is not None]
        flat = torch.cat(pieces)
        return flat / flat.norm().clamp_min(1e-8)  # LEAK

    def record(self, task):
        self.seen += 1
        if self.seen % self.every:
            return
        self.history[task].append(self.flat_gradient())  # LEAK

    def table(self):
        latest = torch.stack([self.history[task][-1] for task in sorted(self.history)])
        return (latest @ latest.T).tolist()


class SharedTrunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, 120), nn.ReLU(), nn.Linear(120, 120), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(120, 1) for _ in range(TASKS)])

    def forward(self, x, task):
        return self.heads[task](self.trunk(x)).squeeze(1)


def main():
    device = sys.argv[1]
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = SharedTrunk().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    agreement = GradientAgreement(model.trunk.parameters(), every=3)
    rules = torch.randn(TASKS, 30, device=device)
    rules = rules + rules.mean(dim=0)
    for step in range(600):
        task = step % TASKS
        x = torch.randn(64, 30, device=device)
        y = torch.sin(x @ rules[task] / 4)
        loss = nn.functional.mse_loss(model(x, task), y)
        optimizer.zero_grad()
        loss.backward()
        agreement.record(task)  # LEAK
        optimizer.step()
    for row in agreement.table():
        print(" ".join(f"{value:+.2f}" for value in row))


if __name__ == "__main__":
    main()
