import torch
from torch import nn

from .blocks import ContextBlock, ConvStem, UpsampleHead


class PhasePicker(nn.Module):
    def __init__(self, channels, width, depth, heads, max_tokens=2048):
        super().__init__()
        self.stem = ConvStem(channels, width)
        self.position = nn.Parameter(torch.zeros(1, max_tokens, width))
        self.blocks = nn.ModuleList(ContextBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = UpsampleHead(width, n_classes=3)

    def forward(self, waves):
        x = self.stem(waves)
        x = x + self.position[:, : x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
