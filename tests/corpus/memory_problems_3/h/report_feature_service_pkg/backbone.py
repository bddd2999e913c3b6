"""Small ResNet-style backbone used by the catalogue service."""
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride > 1 or cin != cout else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.down(x), inplace=True)


class Backbone(nn.Module):
    def __init__(self, width=64, embed_dim=256):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.layer1 = Block(width, width, 2)
        self.layer2 = Block(width, 2 * width, 2)
        self.layer3 = Block(2 * width, 4 * width, 2)
        self.layer4 = Block(4 * width, 8 * width, 2)
        self.head = nn.Linear(8 * width, embed_dim)

    def forward(self, x):
        x = self.layer1(F.relu(self.stem(x)))
        x = self.layer4(self.layer3(self.layer2(x)))
        return self.head(x.mean(dim=(2, 3)))


def build_backbone(device, dtype):
    return Backbone().to(device=device, dtype=dtype).eval()
