import torch
from torch import nn


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class MixerAutoencoder(nn.Module):
    def __init__(self, tokens=196, patch=768, width=1024, layers=8):
        super().__init__()
        self.project = nn.Linear(patch, width)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, width) for _ in range(layers)])
        self.reconstruct = nn.Linear(width, patch)

    def forward(self, patches):
        return self.reconstruct(self.blocks(self.project(patches)))
