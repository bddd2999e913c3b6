import torch
import torch.nn as nn


def block(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(cout, cout, 3, padding=1), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, inplace=True),
    )


class OrganNet(nn.Module):
    def __init__(self, organs, width=16):
        super().__init__()
        self.e1, self.e2, self.e3 = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.pool = nn.MaxPool3d(2)
        self.u2, self.d2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, 2), block(4 * width, 2 * width)
        self.u1, self.d1 = nn.ConvTranspose3d(2 * width, width, 2, 2), block(2 * width, width)
        self.head = nn.Conv3d(width, organs, 1)

    def forward(self, x):
        a = self.e1(x)
        b = self.e2(self.pool(a))
        c = self.e3(self.pool(b))
        y = self.d2(torch.cat([self.u2(c), b], 1))
        y = self.d1(torch.cat([self.u1(y), a], 1))
        return self.head(y)
