"""Building blocks of the detector."""
import torch
from torch import nn


class SmoothGate(nn.Module):
    """Self-gated smooth activation, x * tanh(softplus(x))."""

    def forward(self, x):
        return x * torch.tanh(torch.log(1 + torch.exp(x)))


class ConvUnit(nn.Module):
    def __init__(self, cin, cout, kernel=3, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride=stride, padding=kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.act = SmoothGate()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.reduce = ConvUnit(channels, channels // 2, kernel=1)
        self.expand = ConvUnit(channels // 2, channels)

    def forward(self, x):
        return x + self.expand(self.reduce(x))
