import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Cutoff(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.r = r

    def forward(self, d):
        return 0.5 * (torch.cos(math.pi * d / self.r) + 1.0)


class Interaction(nn.Module):
    """Continuous-filter convolution on the dense pair list."""

    def __init__(self, width, radial):
        super().__init__()
        self.filt = nn.Sequential(nn.Linear(radial, width), nn.SiLU(), nn.Linear(width, width))
        self.inp = nn.Linear(width, width, bias=False)
        self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h, rbf, fc):
        w = self.filt(rbf) * fc.unsqueeze(-1)
        msg = (w * self.inp(h).unsqueeze(0)).sum(1)
        return h + self.out(msg)


class PairPotential(nn.Module):
    def __init__(self, width=96, radial=32, blocks=3, cutoff=8.0):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.register_buffer("centers", torch.linspace(0.4, cutoff, radial))
        self.gamma = 0.5 / (cutoff / radial) ** 2
        self.cut = Cutoff(cutoff)
        self.blocks = nn.ModuleList(Interaction(width, radial) for _ in range(blocks))
        self.head = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))

    def forward(self, z, pos):
        diff = pos.unsqueeze(0) - pos.unsqueeze(1)
        d = (diff.pow(2).sum(-1) + 1e-6).sqrt()
        rbf = torch.exp(-self.gamma * (d.unsqueeze(-1) - self.centers) ** 2)
        fc = self.cut(d)
        h = self.embed(z)
        for blk in self.blocks:
            h = blk(h, rbf, fc)
        return self.head(h).sum()
