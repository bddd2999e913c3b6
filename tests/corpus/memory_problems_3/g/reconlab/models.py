import torch.nn as nn


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.block1 = conv_block(3, 32)
        self.block2 = conv_block(32, 64)
        self.block3 = conv_block(64, 128)
        self.fc = nn.Linear(128 * 20 * 20, 256)

    def forward(self, x):
        x = self.block3(self.block2(self.block1(x)))
        return self.fc(x.flatten(1))


class Generator(nn.Module):
    """Latent vector to 160 x 160 image."""

    def __init__(self, latent=256):
        super().__init__()
        self.project = nn.Linear(latent, 64 * 20 * 20)
        self.net = nn.Sequential(
            nn.Conv2d(64, 48, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(48, 32, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(16, 3, 3, padding=1), nn.Sigmoid())

    def forward(self, z):
        return self.net(self.project(z).view(-1, 64, 20, 20))
