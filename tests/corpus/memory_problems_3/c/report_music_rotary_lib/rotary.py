import torch
from torch import nn


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, theta=10000.0):
        super().__init__()
        frequencies = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.cache = {}

    def forward(self, make_positions, cache_key=None):
        if cache_key is not None and cache_key in self.cache:
            return self.cache[cache_key]
        angles = torch.outer(make_positions(), self.frequencies)
        angles = torch.cat([angles, angles], dim=-1)
        tables = torch.stack([angles.cos(), angles.sin()])
        if cache_key is not None:
            self.cache[cache_key] = tables
        return tables

    def rotate(self, x):
        device, length = x.device, x.shape[-2]
        cos, sin = self.forward(lambda: torch.arange(length, device=device).float(), cache_key=f"{device}:{length}")
        return x * cos + rotate_half(x) * sin
