import torch
from torch import nn


class ResidualMLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class FingerprintNet(nn.Module):
    """Activity predictor on Morgan fingerprints and physico-chemical descriptors."""

    def __init__(self, n_bits=2048, n_desc=200, width=1024, depth=5):
        super().__init__()
        self.bits = nn.Linear(n_bits, width)
        self.desc = nn.Linear(n_desc, width)
        self.blocks = nn.Sequential(*[ResidualMLP(width) for _ in range(depth)])
        self.head = nn.Linear(width, 2)

    def forward(self, bits, desc):
        h = self.bits(bits) + self.desc(desc)
        return self.head(self.blocks(h))
