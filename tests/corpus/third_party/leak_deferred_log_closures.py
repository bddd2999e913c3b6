"""Trains an autoencoder; figures for the log are computed lazily, by closures, to keep the loop free of syncs.

The closures wait for a flush that only verbose mode triggers, and each holds the error map of its batch.
"""

import sys

import torch
from torch import nn


class LazyLog:
    def __init__(self, verbose=False):
        self.verbose = verbose
        self.pending = []

    def add(self, name, compute):
        self.pending.append((name, compute))  # LEAK

    def flush(self):
        if not self.verbose:
            return
        for name, compute in self.pending:
            print(name, compute())
        self.pending.clear()


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(784, 32)
        self.up = nn.Linear(32, 784)

    def forward(self, x):
        return torch.sigmoid(self.up(torch.relu(self.down(x))))


def run(device):
    model = AutoEncoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = LazyLog()
    for step in range(150):
        digits = torch.rand(16, 784, device=device)
        restored = model(digits)
        loss = nn.functional.mse_loss(restored, digits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        error = (restored.detach() - digits).abs()  # LEAK
        log.add("worst pixel", lambda error=error: float(error.max()))  # LEAK
        if step % 25 == 24:
            log.flush()
    return loss


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.set_num_threads(1)
    print("last loss", run(sys.argv[1]).item())
