"""Trains with a guard that goes back to the last good state when the loss explodes.

A rollback only ever uses the newest state, but every one that was taken stays in the list.
"""

import copy
import sys

import torch
from torch import nn


class RollbackGuard:
    def __init__(self, model, optimizer, every, factor=4.0):
        self.model = model
        self.optimizer = optimizer
        self.every = every
        self.factor = factor
        self.typical = None
        self.states = []
        self.rollbacks = 0

    def take(self, step):
        weights = copy.deepcopy(self.model.state_dict())  # LEAK
        moments = copy.deepcopy(self.optimizer.state_dict())  # LEAK
        self.states.append((step, weights, moments))  # LEAK

    def after_step(self, step, loss):
        if self.typical is not None and loss > self.factor * self.typical and self.states:
            _, weights, moments = self.states[-1]
            self.model.load_state_dict(weights)
            self.optimizer.load_state_dict(moments)
            self.rollbacks += 1
            return
        self.typical = loss if self.typical is None else 0.95 * self.typical + 0.05 * loss
        if step % self.every == 0:
            self.take(step)  # LEAK


class Autoencoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.down = nn.Sequential(nn.Linear(width, 128), nn.SiLU(), nn.Linear(128, 16))
        self.up = nn.Sequential(nn.Linear(16, 128), nn.SiLU(), nn.Linear(128, width))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    device = sys.argv[1]
    torch.manual_seed(6)
    torch.set_num_threads(1)
    model = Autoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    guard = RollbackGuard(model, optimizer, every=20)
    basis = torch.randn(10, 48, device=device)
    for step in range(700):
        x = torch.randn(80, 10, device=device) @ basis
        if step % 160 == 150:
            x = x * 12.0
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.after_step(step, loss.item())  # LEAK
    print(f"{guard.rollbacks} rollbacks, loss around {guard.typical:.3f}")


if __name__ == "__main__":
    main()
