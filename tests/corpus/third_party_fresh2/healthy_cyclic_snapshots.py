"""Snapshot ensembling: with a cyclic learning rate, a copy of the weights is taken at the end of each of six cycles, and all vote at the end."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn


def main():
    device = sys.argv[1]
    torch.manual_seed(157)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(40, 120), nn.BatchNorm1d(120), nn.ReLU(), nn.Dropout(0.2), nn.Linear(120, 7)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=60)
    snapshots = []
    for step in range(360):
        model.train()
        inputs = torch.randn(24, 40, device=device)
        loss = F.cross_entropy(model(inputs), torch.randint(0, 7, (24,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 60 == 59:
            snapshots.append(copy.deepcopy(model).eval())
    with torch.no_grad():
        for _ in range(40):
            inputs = torch.randn(24, 40, device=device)
            votes = torch.stack([snapshot(inputs).softmax(dim=1) for snapshot in snapshots]).mean(dim=0)
    print(f"{len(snapshots)} snapshots voted on {len(votes)} items")


if __name__ == "__main__":
    main()
