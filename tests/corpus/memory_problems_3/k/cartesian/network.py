"""Unrolled reconstruction: data consistency followed by a small denoiser."""
import torch
import torch.nn as nn


class Denoiser(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, channels, 3, padding=1), nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1), nn.SiLU(),
            nn.Conv2d(channels, 2, 3, padding=1),
        )

    def forward(self, image):
        planes = torch.cat([image.real, image.imag], dim=1)
        planes = planes + self.body(planes)
        return torch.complex(planes[:, :1], planes[:, 1:])


class UnrolledRecon(nn.Module):
    def __init__(self, iterations=4):
        super().__init__()
        self.step = nn.Parameter(torch.full((iterations,), 0.5))
        self.stages = nn.ModuleList(Denoiser() for _ in range(iterations))

    def forward(self, kspace, sense):
        image = sense.H(kspace)
        for size, stage in zip(self.step, self.stages):
            residual = sense(image) - kspace
            image = stage(image - size * sense.H(residual))
        return image
