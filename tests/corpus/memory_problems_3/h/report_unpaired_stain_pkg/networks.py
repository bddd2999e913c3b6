import torch.nn as nn


def norm_act(channels):
    return [nn.InstanceNorm2d(channels), nn.ReLU(True)]


class Generator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), *norm_act(width),
            nn.Conv2d(width, 2 * width, 4, 2, 1), *norm_act(2 * width),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1), *norm_act(2 * width),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), *norm_act(width),
            nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh(),
        )

    def forward(self, x):
        return self.net(x)


class Discriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 4, 4), nn.Softplus(),
            nn.Conv2d(width, 2 * width, 4, 2, 1), nn.Softplus(),
            nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.Softplus(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 1),
        )

    def forward(self, x):
        return self.net(x)
