import math

import torch
from torch import nn


class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.proj = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time):
        half = self.width // 2
        freqs = torch.exp(-math.log(1e4) * torch.arange(half, device=time.device) / half)
        angles = time[:, None] * freqs[None]
        return self.proj(torch.cat([angles.sin(), angles.cos()], dim=-1))


class ResBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.shift = nn.Linear(width, width)

    def forward(self, x, emb):
        h = self.norm(x) + self.shift(emb)[:, :, None]
        return x + self.conv(nn.functional.silu(h))


class VectorField(nn.Module):
    """Predicts the velocity of the high band given the low band."""

    def __init__(self, bins=513, width=256, blocks=6):
        super().__init__()
        self.time = TimeEmbedding(width)
        self.inp = nn.Conv1d(4 * bins, width, 1)
        self.blocks = nn.ModuleList(ResBlock(width, 2 ** (i % 3)) for i in range(blocks))
        self.out = nn.Conv1d(width, 2 * bins, 1)

    def forward(self, y, condition, time):
        emb = self.time(time)
        h = self.inp(torch.cat([y, condition], dim=1))
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)
