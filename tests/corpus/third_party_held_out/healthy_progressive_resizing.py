"""Trains on images that get larger during the whole run, from 16 to 64 pixels: a step needs more until the end."""

import sys

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Restorer(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.body = nn.Sequential(Residual(channels), Residual(channels))
        self.leave = nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, x):
        return x + self.leave(self.body(self.enter(x)))


def side_at(step, steps, smallest=16, largest=64):
    grown = smallest + (largest - smallest) * step / (steps - 1)
    return int(grown) // 4 * 4


def main():
    device = sys.argv[1]
    torch.manual_seed(66)
    torch.set_num_threads(1)
    steps = 260
    model = Restorer().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(steps):
        side = side_at(step, steps)
        clean = torch.rand(2, 3, side, side, device=device)
        noisy = clean + 0.1 * torch.randn_like(clean)
        loss = nn.functional.l1_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"images of {side} pixels at the end, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
