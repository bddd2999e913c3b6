import math

import torch
from torch import nn


class HarmonicModel(nn.Module):
    """Brightness of every star of one field: a mean level, a slow drift and a few harmonics."""

    def __init__(self, stars, harmonics=2, device="cuda"):
        super().__init__()
        self.level = nn.Parameter(torch.zeros(stars, 1, device=device))
        self.drift = nn.Parameter(torch.zeros(stars, 1, device=device))
        self.frequency = nn.Parameter(torch.full((stars, 1), 0.7, device=device))
        self.amplitude = nn.Parameter(torch.full((stars, harmonics), 0.1, device=device))
        self.phase = nn.Parameter(torch.zeros(stars, harmonics, device=device))

    def forward(self, times):
        flux = self.level + self.drift * times
        for k in range(self.amplitude.size(1)):
            angle = 2 * math.pi * (k + 1) * self.frequency * times + self.phase[:, k:k + 1]
            flux = flux + self.amplitude[:, k:k + 1] * torch.sin(angle)
        return flux


def survey_fields(count, stars, epochs, seed=31):
    rng = torch.Generator().manual_seed(seed)
    times = torch.sort(torch.rand(1, epochs, generator=rng)).values * 30
    for number in range(count):
        flux = 0.2 * torch.sin(4.4 * times) + 0.05 * torch.randn(stars, 1, generator=rng)
        yield f"F{number:03d}", times, flux.expand(stars, epochs)
