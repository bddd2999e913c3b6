"""Trains with a cyclic rate and takes one snapshot per cycle, eight in all; the eight vote at the end."""

import copy
import math
import sys

import torch
from torch import nn

CYCLES = 8


class Classifier(nn.Module):
    def __init__(self, width=150):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x):
        return self.net(x)


def spirals(count, device):
    label = torch.randint(0, 3, (count,), device=device)
    radius = torch.rand(count, device=device)
    angle = 5 * radius + 2.1 * label + 0.15 * torch.randn(count, device=device)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    scales = torch.arange(1, 5, device=device, dtype=torch.float32)
    waves = (points.unsqueeze(2) * scales).flatten(1)
    return torch.cat([waves.sin(), waves.cos()], dim=1), label


@torch.no_grad()
def vote(snapshots, x):
    return torch.stack([snapshot(x).softmax(dim=1) for snapshot in snapshots]).mean(dim=0).argmax(dim=1)


def main():
    device = sys.argv[1]
    torch.manual_seed(37)
    torch.set_num_threads(1)
    model = Classifier().to(device)
    steps = 90
    snapshots = []
    for cycle in range(CYCLES):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5 * (1 + math.cos(math.pi * s / steps)))
        for _ in range(steps):
            x, label = spirals(96, device)
            loss = nn.functional.cross_entropy(model(x), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        snapshots.append(copy.deepcopy(model).eval().requires_grad_(False))
        print(f"cycle {cycle}: {loss.item():.4f}")
    x, label = spirals(1000, device)
    print(f"{len(snapshots)} snapshots: {(vote(snapshots, x) == label).float().mean().item():.3f}")


if __name__ == "__main__":
    main()
