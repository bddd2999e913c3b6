"""Trains a denoiser; a tripwire captures the strangest batch of every 50 steps, so that one can look at it after the epoch.

Each epoch gets a new tripwire, but the list of captures is an attribute of the class, shared by all: one batch stays per 50 steps.
"""

import sys

import torch
from torch import nn


class Tripwire:
    captures = []

    def __init__(self, window=50):
        self.window = window
        self.count = 0
        self.worst_loss = float("-inf")
        self.worst_batch = None

    def offer(self, loss, clean, noisy):
        if loss > self.worst_loss:
            self.worst_loss = loss
            self.worst_batch = (clean.detach(), noisy.detach())  # LEAK
        self.count += 1
        if self.count % self.window == 0:
            self.captures.append((self.worst_loss, self.worst_batch))  # LEAK
            self.worst_loss = float("-inf")
            self.worst_batch = None

    def summary(self):
        return max(loss for loss, _ in self.captures)


class Denoiser(nn.Module):
    def __init__(self, channels=12):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, channels, 5, padding=2), nn.GELU(), nn.Conv1d(channels, channels, 5, padding=2), nn.GELU(), nn.Conv1d(channels, 1, 5, padding=2)
        )

    def forward(self, x):
        return x - self.net(x)


def signals(count, device):
    t = torch.linspace(0, 1, 256, device=device)
    frequency = 1 + 6 * torch.rand(count, 1, 1, device=device)
    clean = torch.sin(6.28 * frequency * t)  # LEAK
    strength = 0.1 + 0.4 * torch.rand(1, device=device)
    return clean, clean + strength * torch.randn_like(clean)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(9)
    torch.set_num_threads(1)
    model = Denoiser().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(8):
        tripwire = Tripwire()
        for _ in range(150):
            clean, noisy = signals(12, device)  # LEAK
            loss = nn.functional.mse_loss(model(noisy), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tripwire.offer(loss.item(), clean, noisy)  # LEAK
        print(f"epoch {epoch}: strangest {tripwire.summary():.4f}")


if __name__ == "__main__":
    main()
