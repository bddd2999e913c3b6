import math

import torch
from torch import nn


def gelu(x):
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))
    return 0.5 * x * (1.0 + torch.tanh(inner))


class ChannelLast(nn.Module):
    """LayerNorm over channels for NHWC tensors."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x):
        return self.norm(x)


class LeafBlock(nn.Module):
    def __init__(self, dim, ratio=4, scale=1e-6):
        super().__init__()
        self.spatial = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = ChannelLast(dim)
        self.expand = nn.Linear(dim, ratio * dim)
        self.project = nn.Linear(ratio * dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), scale))

    def forward(self, x):
        shortcut = x
        x = self.spatial(x).permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.project(gelu(self.expand(x)))
        x = (self.gamma * x).permute(0, 3, 1, 2)
        return shortcut + x


class Downsample(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.norm = nn.GroupNorm(1, dim_in)
        self.reduce = nn.Conv2d(dim_in, dim_out, 2, stride=2)

    def forward(self, x):
        return self.reduce(self.norm(x))
