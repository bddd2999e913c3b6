"""Fits a small network with L-BFGS, whose history of updates fills during the first iterations and then rolls."""

import sys

import torch
from torch import nn


def target(x):
    return torch.sin(3 * x) + 0.3 * x


def main():
    device = sys.argv[1]
    torch.manual_seed(8)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 1)).to(device)
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        lr=0.2,
        max_iter=2,
        history_size=30,
        tolerance_grad=0.0,
        tolerance_change=-1.0,
    )
    x = torch.linspace(-2, 2, 200, device=device)[:, None]
    y = target(x)
    last = []

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        last[:] = [loss.detach()]
        return loss

    for _ in range(120):
        optimizer.step(closure)
    print("loss:", last[0].item())


if __name__ == "__main__":
    main()
