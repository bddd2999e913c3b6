"""Trains a denoiser at continuous times; the sinusoidal features of a time are cached without a limit, and no time is drawn twice."""

import functools
import math
import random
import sys

import torch
from torch import nn


@functools.lru_cache(maxsize=None)
def time_features(time, points, device):
    frequencies = torch.exp(-math.log(1000.0) * torch.arange(32, device=device) / 32)
    phases = (time + torch.arange(points, device=device)[:, None]) * frequencies
    return torch.cat([phases.sin(), phases.cos()], dim=1)  # LEAK


class Denoiser(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time = nn.Linear(64, width)
        self.inner = nn.Linear(16, width)
        self.outer = nn.Linear(width, 16)

    def forward(self, noisy, time):
        features = time_features(time, noisy.shape[0], str(noisy.device))  # LEAK
        return self.outer(torch.tanh(self.inner(noisy) + self.time(features)))


def main():
    device = sys.argv[1]
    torch.manual_seed(59)
    torch.set_num_threads(1)
    rng = random.Random(59)
    denoiser = Denoiser(96).to(device)
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=2e-4)
    steps = 0
    while steps < 600:
        time = rng.random()
        clean = torch.randn(64, 16, device=device)
        noise = torch.randn_like(clean)
        noisy = math.sqrt(1 - time) * clean + math.sqrt(time) * noise
        loss = (denoiser(noisy, time) - noise).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"{steps} steps")


if __name__ == "__main__":
    main()
