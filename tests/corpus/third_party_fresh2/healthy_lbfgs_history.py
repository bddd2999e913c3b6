"""Fits a network by L-BFGS, whose history of updates fills up to sixty pairs of vectors during the fit and then slides."""

import sys

import torch
from torch import nn


class Fit:
    def __init__(self, device):
        self.inputs = torch.linspace(-3, 3, 128, device=device)[:, None]
        self.targets = torch.sin(2 * self.inputs) + 0.1 * torch.randn_like(self.inputs)
        self.model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
        self.optimizer = torch.optim.LBFGS(
            self.model.parameters(), lr=0.5, max_iter=2, history_size=60, tolerance_grad=0, tolerance_change=0
        )
        self.evaluations = 0

    def closure(self):
        self.evaluations += 1
        self.optimizer.zero_grad()
        # Noise on the inputs, so that the fit goes on moving.
        inputs = self.inputs + 0.01 * torch.randn_like(self.inputs)
        loss = (self.model(inputs) - self.targets).square().mean()
        loss.backward()
        return loss

    def run(self, steps):
        for _ in range(steps):
            self.optimizer.step(self.closure)


def main():
    torch.manual_seed(223)
    torch.set_num_threads(1)
    fit = Fit(sys.argv[1])
    fit.run(110)
    print(f"{fit.evaluations} evaluations")


if __name__ == "__main__":
    main()
