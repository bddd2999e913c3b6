import torch
from torch import nn


class DenseUnit(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.first = nn.Conv2d(features, features, 3, padding=1)
        self.second = nn.Conv2d(features, features, 3, padding=1)

    def forward(self, x):
        return x + 0.2 * self.second(torch.relu(self.first(x)))


class Upscaler(nn.Module):
    def __init__(self, features, blocks, scale):
        super().__init__()
        self.enter = nn.Conv2d(3, features, 3, padding=1)
        self.units = nn.Sequential(*[DenseUnit(features) for _ in range(blocks)])
        self.grow = nn.Sequential(nn.Conv2d(features, features * scale ** 2, 3, padding=1), nn.PixelShuffle(scale))
        self.leave = nn.Conv2d(features, 3, 3, padding=1)

    def forward(self, image):
        x = self.enter(image)
        return self.leave(self.grow(x + self.units(x)))
