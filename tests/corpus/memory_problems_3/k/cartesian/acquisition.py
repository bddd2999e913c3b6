"""Simulated brain slices, coil sensitivities and sampling masks."""
import math

import torch


def phantom(batch, size, generator):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    image = torch.zeros(batch, 1, size, size)
    for _ in range(6):
        cx, cy, rx, ry = torch.rand(4, batch, 1, 1, 1, generator=generator)
        inside = ((xx - cx + 0.5) / (0.1 + rx)) ** 2 + ((yy - cy + 0.5) / (0.1 + ry)) ** 2 < 0.4
        image += inside * torch.rand(batch, 1, 1, 1, generator=generator)
    return image.to(torch.complex64)


def coil_maps(coils, size):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angles = torch.arange(coils) * (2 * math.pi / coils)
    cx, cy = angles.cos()[:, None, None], angles.sin()[:, None, None]
    magnitude = torch.exp(-((xx - cx) ** 2 + (yy - cy) ** 2))
    phase = torch.exp(1j * (cx * xx + cy * yy))
    maps = magnitude * phase
    return (maps / maps.abs().square().sum(0, keepdim=True).sqrt())[None].to(torch.complex64)


def sampling_mask(size, acceleration, generator):
    lines = torch.rand(size, generator=generator) < 1.0 / acceleration
    lines[size // 2 - 12: size // 2 + 12] = True
    return lines.float().reshape(1, 1, 1, size)
