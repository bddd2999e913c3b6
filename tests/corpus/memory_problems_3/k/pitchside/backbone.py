import torch.nn as nn


class FrameEncoder(nn.Module):
    """Image -> feature map at stride 16."""

    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=4, padding=3), nn.GELU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.GELU(),
            nn.Conv2d(64, width, 3, stride=2, padding=1),
        )

    def forward(self, frame):
        return self.net(frame)


class MaskHead(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.up = nn.Sequential(
            nn.ConvTranspose2d(width, 64, 2, stride=2), nn.GELU(),
            nn.ConvTranspose2d(64, 32, 2, stride=2),
        )
        self.kernel = nn.Linear(width, 32)

    def forward(self, feature, pointers):
        return (self.kernel(pointers) @ self.up(feature).flatten(2)).unflatten(2, (128, 128))
