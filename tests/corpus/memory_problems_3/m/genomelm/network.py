import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential


class LongConv(nn.Module):
    """Gated dilated convolution over the sequence, with a pointwise expansion."""

    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.depth = nn.Conv1d(width, width, 9, padding=4 * dilation, dilation=dilation, groups=width)
        self.gate = nn.Conv1d(width, width, 1)
        self.expand = nn.Conv1d(width, 2 * width, 1)
        self.project = nn.Conv1d(2 * width, width, 1)

    def forward(self, x):
        h = self.norm(x)
        h = self.depth(h) * torch.sigmoid(self.gate(h))
        return x + self.project(nn.functional.gelu(self.expand(h)))


class GenomeTrunk(nn.Module):
    def __init__(self, width=192, depth=15, segments=8, tracks=16, pool=128):
        super().__init__()
        self.segments = segments
        self.stem = nn.Conv1d(4, width, 15, padding=7)
        self.trunk = nn.Sequential(*[LongConv(width, 2 ** (i % 6)) for i in range(depth)])
        self.pool = nn.AvgPool1d(pool)
        self.head = nn.Conv1d(width, tracks, 1)

    def forward(self, onehot):
        x = self.stem(onehot)
        if self.training:
            x = checkpoint_sequential(self.trunk, self.segments, x, use_reentrant=False)
        else:
            x = self.trunk(x)
        return nn.functional.softplus(self.head(self.pool(x)))
