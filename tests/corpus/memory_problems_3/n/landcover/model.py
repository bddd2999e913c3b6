"""Patch transformer for multi-band satellite tiles."""
import math
from functools import lru_cache

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class TileTransformer(nn.Module):
    def __init__(self, bands=10, classes=9, width=640, depth=8, patch=8):
        super().__init__()
        self.patch, self.width = patch, width
        self.embed = nn.Conv2d(bands, width, patch, stride=patch)
        self.layers = nn.ModuleList(Layer(width, 10) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes * patch * patch)

    @lru_cache(maxsize=64)
    def grid_code(self, rows, cols):
        """Sine code of a grid of patches, shape (rows * cols, width)."""
        quarter = self.width // 4
        freq = torch.exp(torch.arange(quarter) * (-math.log(10000.0) / quarter))
        y = torch.arange(rows)[:, None] * freq
        x = torch.arange(cols)[:, None] * freq
        y = torch.cat([y.sin(), y.cos()], -1)[:, None].expand(rows, cols, -1)
        x = torch.cat([x.sin(), x.cos()], -1)[None].expand(rows, cols, -1)
        return torch.cat([y, x], -1).reshape(rows * cols, self.width).to(self.head.weight.device)

    def forward(self, tiles):
        grid = self.embed(tiles)
        n, d, rows, cols = grid.shape
        x = grid.flatten(2).transpose(1, 2) + self.grid_code(rows, cols)
        for layer in self.layers:
            x = layer(x)
        x = self.head(self.norm(x)).transpose(1, 2).reshape(n, -1, rows, cols)
        return F.pixel_shuffle(x, self.patch)
