"""Statistical downscaling of daily precipitation and temperature fields, 12 residual blocks."""
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Config:
    variables: int = 8
    width: int = 64
    depth: int = 12
    lat: int = 192
    lon: int = 288
    factor: int = 2
    batch: int = 2
    steps: int = 8
    lr: float = 3e-4
    recompute: bool = True


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv_in = nn.Conv2d(width, width, 3, padding=1, padding_mode="zeros")
        self.conv_out = nn.Conv2d(width, width, 3, padding=1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.Sigmoid())

    def forward(self, x):
        h = F.gelu(self.conv_in(self.norm(x)))
        h = self.conv_out(h)
        return x + h * self.gate(h)


class Trunk(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Downscaler(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.lift = nn.Conv2d(cfg.variables + 1, cfg.width, 3, padding=1)
        self.trunk = Trunk(cfg.width, cfg.depth)
        self.project = nn.Sequential(nn.Conv2d(cfg.width, 2 * cfg.factor ** 2, 3, padding=1),
                                     nn.PixelShuffle(cfg.factor))

    def forward(self, fields, orography):
        static = orography.expand(fields.shape[0], -1, -1, -1)
        x = self.lift(torch.cat([fields, static], dim=1))
        if self.cfg.recompute and self.training:
            x = checkpoint(self.trunk, x, use_reentrant=False)
        else:
            x = self.trunk(x)
        return self.project(x)


class ReanalysisDays:
    def __init__(self, cfg, seed):
        self.cfg = cfg
        self.rng = np.random.default_rng(seed)
        lat = np.linspace(-np.pi / 2, np.pi / 2, cfg.lat, dtype=np.float32)
        self.area = torch.from_numpy(np.cos(lat)).clamp_min(0.01)
        self.orography = torch.from_numpy(
            self.rng.standard_normal((1, 1, cfg.lat, cfg.lon)).astype(np.float32))

    def batch(self):
        c = self.cfg
        coarse = self.rng.standard_normal((c.batch, c.variables, c.lat, c.lon)).astype(np.float32)
        fine = self.rng.standard_normal((c.batch, 2, c.lat * c.factor, c.lon * c.factor)).astype(np.float32)
        return torch.from_numpy(coarse), torch.from_numpy(fine)


def weighted_mse(pred, target, area):
    weights = area.repeat_interleave(pred.shape[-2] // area.shape[0])
    error = (pred - target).pow(2).mean(dim=(0, 1, 3))
    return (error * weights).sum() / weights.sum()


def main():
    device = torch.device(sys.argv[1])
    cfg = Config()
    torch.manual_seed(2024)
    days = ReanalysisDays(cfg, seed=5)
    model = Downscaler(cfg).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    area = days.area.to(device)
    orography = days.orography.to(device)
    started = time.time()
    for step in range(cfg.steps):
        coarse, fine = days.batch()
        pred = model(coarse.to(device), orography)
        loss = weighted_mse(pred, fine.to(device), area)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"step {step}: grid {cfg.lat}x{cfg.lon} -> {pred.shape[-2]}x{pred.shape[-1]}, "
              f"{time.time() - started:.1f} s")
    print("finished")


if __name__ == "__main__":
    main()
