"""Trains with a warm-up and, in the last third, collects the weights for an average.

Each snapshot is a full copy and all of them are kept until the end instead of a running mean.
"""

import sys

import torch
from torch import nn

STEPS = 450
AVERAGE_FROM = 300


def snapshot(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}  # LEAK


def learning_rate(step):
    if step < 50:
        return 1e-3 * (step + 1) / 50
    return 1e-3


def main(device):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    snapshots = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        inputs = torch.randn(32, 40, device=device)
        targets = inputs[:, :4].argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= AVERAGE_FROM and step % 2 == 0:
            snapshots.append(snapshot(model))  # LEAK
    averaged = {name: torch.stack([s[name] for s in snapshots]).mean(dim=0) for name in snapshots[0]}
    model.load_state_dict(averaged)
    print("averaged", len(snapshots), "snapshots")


if __name__ == "__main__":
    main(sys.argv[1])
