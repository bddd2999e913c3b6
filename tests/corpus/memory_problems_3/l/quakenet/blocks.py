import torch
from torch import nn


class ConvStem(nn.Module):
    """Downsamples the record by eight."""

    def __init__(self, channels, width):
        super().__init__()
        steps = []
        sizes = (channels, width // 4, width // 2, width)
        for a, b in zip(sizes[:-1], sizes[1:]):
            steps += [nn.Conv1d(a, b, 7, stride=2, padding=3), nn.BatchNorm1d(b), nn.GELU()]
        self.net = nn.Sequential(*steps)

    def forward(self, x):
        return self.net(x).transpose(1, 2)


class ContextBlock(nn.Module):
    def __init__(self, width, heads, dropout=0.1):
        super().__init__()
        self.norm_a = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.norm_b = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Dropout(dropout), nn.Linear(4 * width, width))

    def forward(self, x):
        h = self.norm_a(x)
        mixed, _ = self.attn(h, h, h)
        x = x + mixed
        return x + self.mlp(self.norm_b(x))


class UpsampleHead(nn.Module):
    def __init__(self, width, n_classes):
        super().__init__()
        self.up = nn.Sequential(
            nn.ConvTranspose1d(width, width // 2, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose1d(width // 2, width // 4, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose1d(width // 4, n_classes, 4, stride=2, padding=1))

    def forward(self, x):
        return self.up(x.transpose(1, 2))
