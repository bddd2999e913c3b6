"""Diffusion transformer on latent patches."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.to_out = nn.Linear(width, width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 4 * width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, cond):
        shift1, scale1, shift2, scale2 = self.modulation(F.silu(cond))[:, None].chunk(4, -1)
        b, n, w = x.shape
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (z.reshape(b, n, self.heads, -1).transpose(1, 2)
                   for z in self.to_qkv(h).chunk(3, -1))
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w)
        x = x + self.drop(self.to_out(h))
        h = self.norm2(x) * (1 + scale2) + shift2
        return x + self.drop(self.fc2(F.gelu(self.fc1(h))))


class LatentTransformer(nn.Module):
    def __init__(self, channels=4, patch=2, width=512, depth=10, heads=8, side=64):
        super().__init__()
        self.patch = patch
        self.side = side
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(torch.randn(1, (side // patch) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.text = nn.Linear(256, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.out = nn.Linear(width, channels * patch * patch)
        self.width = width
        self.recompute = False

    def enable_recompute(self):
        self.recompute = True

    def timestep_embedding(self, t):
        half = self.width // 2
        rate = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        angle = t[:, None].float() * rate[None]
        return self.time(torch.cat([angle.cos(), angle.sin()], -1))

    def forward(self, latent, t, prompt):
        x = self.embed(latent).flatten(2).transpose(1, 2) + self.position
        cond = self.timestep_embedding(t) + self.text(prompt)
        for block in self.blocks:
            if self.training and self.recompute:
                x = checkpoint(block, x, cond, use_reentrant=False)
            else:
                x = block(x, cond)
        grid = self.out(x).transpose(1, 2).unflatten(2, (self.side // self.patch,) * 2)
        return F.pixel_shuffle(grid, self.patch)
