import torch.nn as nn
import torch.nn.functional as F


class AppearanceNet(nn.Module):
    """Re-identification embedding of player crops."""

    def __init__(self, dim=256):
        super().__init__()
        widths = [3, 32, 64, 128, 256]
        layers = []
        for a, b in zip(widths, widths[1:]):
            layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], dim))

    def forward(self, crops):
        return F.normalize(self.body(crops), dim=-1)
