"""Rotary position tables."""
from functools import lru_cache

import torch


@lru_cache(maxsize=None)
def rotary_table(length, dim, device):
    inv = 1.0 / (10000 ** (torch.arange(0, dim, 2, device=device).float() / dim))
    angles = torch.arange(length, device=device).float().unsqueeze(1) * inv
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rotate(x, table):
    half = x.shape[-1] // 2
    cos, sin = table[..., :half], table[..., half:]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
