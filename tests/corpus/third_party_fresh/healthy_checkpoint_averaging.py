"""Trains and keeps the last twelve checkpoints of the weights (one in every 20 steps); their mean is evaluated now and then."""

import collections
import sys

import torch
from torch import nn


class CheckpointAverager:
    def __init__(self, last):
        self.checkpoints = collections.deque(maxlen=last)

    def save(self, model):
        self.checkpoints.append({name: value.detach().clone() for name, value in model.state_dict().items()})

    def mean(self):
        names = self.checkpoints[-1]
        return {name: torch.stack([state[name] for state in self.checkpoints]).mean(dim=0) for name in names}


class Ranker(nn.Module):
    def __init__(self, features=28, width=110):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def pairwise_loss(better, worse):
    return nn.functional.softplus(worse - better).mean()


def queries(count, weights, device):
    x = torch.randn(count, 10, 28, device=device)
    relevance = (x @ weights).sin() + 0.3 * torch.randn(count, 10, device=device)
    rows = torch.arange(count, device=device)
    return x[rows, relevance.argmax(dim=1)], x[rows, relevance.argmin(dim=1)]


def main():
    device = sys.argv[1]
    torch.manual_seed(39)
    torch.set_num_threads(1)
    model, averaged = Ranker().to(device), Ranker().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=5e-4)
    averager = CheckpointAverager(last=12)
    weights = torch.randn(28, device=device) / 4
    held_out = queries(200, weights, device)
    for step in range(1, 601):
        better, worse = queries(48, weights, device)
        loss = pairwise_loss(model(better), model(worse))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            averager.save(model)
        if step % 120 == 0:
            averaged.load_state_dict(averager.mean())
            with torch.no_grad():
                score = (averaged(held_out[0]) > averaged(held_out[1])).float().mean().item()
            print(f"{step}: loss {loss.item():.4f}, averaged {score:.3f}")


if __name__ == "__main__":
    main()
