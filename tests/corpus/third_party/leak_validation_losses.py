"""Trains a small regressor and looks at a held-out batch now and then.

The validation losses are kept as tensors, each with the whole graph of its forward pass.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F


class Regressor(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x))  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = Regressor().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    valid_x = torch.randn(128, 24, device=device)
    valid_y = valid_x.sum(dim=1, keepdim=True)
    valid_losses = []
    for step in range(240):
        x = torch.randn(64, 24, device=device)
        y = x.sum(dim=1, keepdim=True)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            valid_losses.append(F.mse_loss(model(valid_x), valid_y))  # LEAK
    print(f"{len(valid_losses)} checks, last loss {valid_losses[-1].item():.4f}")


if __name__ == "__main__":
    main()
