import torch
from torch import nn


class FaultNet(nn.Module):
    """Per-voxel fault probability from attribute traces."""

    def __init__(self, attributes, width=64):
        super().__init__()
        self.mix = nn.Sequential(
            nn.Linear(attributes, width), nn.GELU(),
            nn.Linear(width, width), nn.GELU(),
            nn.Linear(width, 2),
        )

    def forward(self, slab):
        return self.mix(slab.permute(1, 2, 3, 0)).softmax(-1)[..., 1]
