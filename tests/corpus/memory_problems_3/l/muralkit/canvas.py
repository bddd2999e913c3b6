import torch
from torch import nn


class Canvas(nn.Module):
    """Picture parameterised by a coarse-to-fine sum of grids."""

    def __init__(self, size, octaves=4):
        super().__init__()
        self.size = size
        self.grids = nn.ParameterList(
            nn.Parameter(torch.randn(1, 3, size >> k, size >> k) * 0.05) for k in range(octaves))

    def forward(self):
        total = 0
        for grid in self.grids:
            total = total + nn.functional.interpolate(grid, size=(self.size, self.size), mode="bilinear",
                                                      align_corners=False)
        return torch.sigmoid(total)


def smoothness(picture):
    dx = picture[..., :, 1:] - picture[..., :, :-1]
    dy = picture[..., 1:, :] - picture[..., :-1, :]
    return dx.abs().mean() + dy.abs().mean()
