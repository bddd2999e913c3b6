"""Regression of house prices on tabular data, with the whole training set as one batch.

True cause: the predictions have the shape (n, 1) and the targets (n,), so that their difference broadcasts to (n, n):
one allocation of tens of gigabytes in a program that otherwise needs under 1 GiB.
The line: `error = prediction - target`.
Cure: squeeze the predictions, `self.net(x).squeeze(-1)` (or target.unsqueeze(1)); do not make the batch smaller, since
the loss would still be wrong.
"""

import torch
from torch import nn

torch.manual_seed(4)
device = torch.device("cuda:0")

N_SAMPLES = 120_000
N_FEATURES = 64


class PriceModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(N_FEATURES, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )

    def forward(self, x):
        return self.net(x)


def huber(prediction, target, delta=1.0):
    error = prediction - target  # CAUSE
    small = error.abs() <= delta
    return torch.where(small, 0.5 * error**2, delta * (error.abs() - 0.5 * delta)).mean()


features = torch.randn(N_SAMPLES, N_FEATURES)
weights = torch.randn(N_FEATURES)
prices = features @ weights + 0.1 * torch.randn(N_SAMPLES)
features, prices = features.to(device), prices.to(device)
features = (features - features.mean(0)) / features.std(0)

model = PriceModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(50):
    optimizer.zero_grad()
    loss = huber(model(features), prices)
    loss.backward()
    optimizer.step()
    if epoch % 10 == 0:
        print(f"epoch {epoch:3d}  loss {loss.item():.4f}")
