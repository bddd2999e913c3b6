from collections import OrderedDict

from torch import nn


def group(a, b, n):
    layers = []
    for i in range(n):
        layers += [nn.Conv2d(a if i == 0 else b, b, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def build_encoder():
    """A frozen VGG-like picture encoder."""
    encoder = nn.Sequential(OrderedDict([
        ("early", group(3, 64, 2)), ("pool1", nn.AvgPool2d(2)),
        ("shapes", group(64, 128, 2)), ("pool2", nn.AvgPool2d(2)),
        ("parts", group(128, 256, 3)), ("pool3", nn.AvgPool2d(2)),
        ("objects", group(256, 256, 1)),
    ]))
    return encoder.requires_grad_(False).eval()
