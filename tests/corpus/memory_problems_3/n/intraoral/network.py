import torch
import torch.nn.functional as F
from torch import nn


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.InstanceNorm2d(cout), nn.LeakyReLU(0.1, inplace=True),
    )


class ToothSegmenter(nn.Module):
    """Axial slices with two neighbours each, every slice labelled with 32 teeth and background."""

    def __init__(self, classes=33, width=16):
        super().__init__()
        self.enc1 = block(3, width)
        self.enc2 = block(width, 2 * width)
        self.dec1 = block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool2d(a, 2))
        a = self.dec1(torch.cat([a, F.interpolate(b, size=a.shape[2:], mode="bilinear")], 1))
        return self.head(a)
