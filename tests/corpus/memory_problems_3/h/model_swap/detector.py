import functools
import math

import torch
import torch.nn.functional as F
from torch import nn


class ViTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class PageDetector(nn.Module):
    """Finds text lines, tables and figures on scanned pages of any aspect ratio."""

    def __init__(self, dim=1664, depth=38, heads=16, patch=16, classes=12, temperature=10000.0):
        super().__init__()
        self.dim = dim
        self.patch_size = patch
        self.temperature = temperature
        self.stem = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.ModuleList(ViTBlock(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.box_head = nn.Linear(dim, 4)
        self.class_head = nn.Linear(dim, classes + 1)

    @functools.lru_cache(maxsize=32)
    def position_table(self, rows, cols):
        quarter = self.dim // 4
        device = self.stem.weight.device
        omega = torch.exp(-math.log(self.temperature) * torch.arange(quarter, device=device) / quarter)
        ys = torch.arange(rows, device=device).repeat_interleave(cols)
        xs = torch.arange(cols, device=device).repeat(rows)
        parts = [f(t[:, None] * omega) for t in (ys, xs) for f in (torch.sin, torch.cos)]
        return torch.cat(parts, dim=1)[None]

    def forward(self, pages):
        x = self.stem(pages)
        rows, cols = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2) + self.position_table(rows, cols)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.box_head(x).sigmoid(), self.class_head(x)
