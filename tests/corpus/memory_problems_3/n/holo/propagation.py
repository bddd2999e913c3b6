import math

import torch
from torch import nn


class AngularSpectrum(nn.Module):
    """Free space propagation of a field from the modulator to the image plane."""

    def __init__(self, height, width, pitch, wavelengths, distance):
        super().__init__()
        fy = torch.fft.fftfreq(height, pitch).view(-1, 1)
        fx = torch.fft.fftfreq(width, pitch).view(1, -1)
        kernels = []
        for wavelength in wavelengths:
            root = (1.0 / wavelength ** 2 - fx.square() - fy.square()).clamp(min=0).sqrt()
            kernels.append(torch.polar(torch.ones_like(root), 2 * math.pi * distance * root))
        self.register_buffer("transfer", torch.stack(kernels))

    def forward(self, phase):
        field = torch.polar(torch.ones_like(phase), phase)
        return torch.fft.ifft2(torch.fft.fft2(field) * self.transfer)


class HologramLoss(nn.Module):
    def __init__(self, propagation, target):
        super().__init__()
        self.propagation = propagation
        self.register_buffer("amplitude", target.clamp(min=0).sqrt())
        self.scale = nn.Parameter(torch.ones(target.shape[0], 1, 1), requires_grad=False)

    def forward(self, phase):
        reconstruction = self.propagation(phase).abs() * self.scale
        return (reconstruction - self.amplitude).square().mean()
