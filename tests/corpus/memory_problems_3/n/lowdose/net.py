"""Residual encoder-decoder that removes the noise of low-dose slices."""
from torch import nn
from torch.nn import functional as F


class Stage(nn.Module):
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=stride, padding=1)
        self.norm = nn.GroupNorm(8, cout)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)), inplace=True)


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inlet = Stage(1, width)
        self.down = Stage(width, 2 * width, stride=2)
        self.middle = nn.Sequential(Stage(2 * width, 2 * width), Stage(2 * width, 2 * width))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.outlet = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        skip = self.inlet(x)
        y = self.up(self.middle(self.down(skip)))
        return x - self.outlet(y + skip)
