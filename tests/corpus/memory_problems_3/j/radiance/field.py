import torch
from torch import nn


def encode(x, bands):
    parts = [x]
    for k in range(bands):
        parts += [torch.sin(2.0 ** k * x), torch.cos(2.0 ** k * x)]
    return torch.cat(parts, -1)


class RadianceField(nn.Module):
    def __init__(self, width=64, depth=4, position_bands=5, direction_bands=2):
        super().__init__()
        self.position_bands, self.direction_bands = position_bands, direction_bands
        inputs = 3 + 6 * position_bands
        layers = []
        for i in range(depth):
            layers += [nn.Linear(inputs if i == 0 else width, width), nn.ReLU(inplace=True)]
        self.trunk = nn.Sequential(*layers)
        self.density = nn.Linear(width, 1)
        self.color = nn.Sequential(
            nn.Linear(width + 3 + 6 * direction_bands, width // 2), nn.ReLU(inplace=True), nn.Linear(width // 2, 3)
        )

    def forward(self, points, directions):
        h = self.trunk(encode(points, self.position_bands))
        view = encode(directions, self.direction_bands).unsqueeze(1).expand(-1, points.size(1), -1)
        return torch.cat([torch.sigmoid(self.color(torch.cat([h, view], -1))), self.density(h)], -1)
