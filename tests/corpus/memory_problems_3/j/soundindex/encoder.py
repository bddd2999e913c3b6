import torch
import torch.nn.functional as F
from torch import nn


class MixBlock(nn.Module):
    def __init__(self, width, kernel=15):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norm2(x))


class SegmentEncoder(nn.Module):
    """Log-mel segments to a sequence of states; position 0 is the summary of the segment."""

    def __init__(self, mels=80, width=512, layers=3):
        super().__init__()
        self.front = nn.Conv1d(mels, width, 5, stride=2, padding=2)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(MixBlock(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, mel):
        x = F.gelu(self.front(mel)).transpose(1, 2)
        x = torch.cat([self.summary.expand(x.size(0), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    @torch.no_grad()
    def embed(self, mel):
        return self(mel)[:, 0]
