import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class LandCoverNet(nn.Module):
    """Four spectral bands in, a class for every pixel out; works at half of the resolution."""

    def __init__(self, bands=4, classes=9, width=64, dilations=(1, 2, 4, 8)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(bands, width, 5, stride=2, padding=2), nn.ReLU())
        self.body = nn.Sequential(*[Residual(width, dilation) for dilation in dilations])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        scores = self.head(self.body(self.stem(x)))
        return nn.functional.interpolate(scores, size=x.shape[-2:], mode="bilinear", align_corners=False)
