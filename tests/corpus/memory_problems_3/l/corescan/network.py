import torch
from torch import nn
import torch.nn.functional as F


def stage(a, b, stride=1):
    return nn.Sequential(nn.Conv3d(a, b, 3, stride=stride, padding=1), nn.InstanceNorm3d(b, affine=True),
                         nn.LeakyReLU(0.01, inplace=True))


class CoreUNet(nn.Module):
    """Works on a grid four times coarser than the scan; logits are brought back to scan resolution."""

    def __init__(self, n_phases, base=16):
        super().__init__()
        self.patchify = nn.Conv3d(1, base, 4, stride=4)
        self.enter = stage(base, base)
        self.down = stage(base, base * 2, stride=2)
        self.middle = stage(base * 2, base * 2)
        self.up = nn.ConvTranspose3d(base * 2, base, 2, stride=2)
        self.mix = stage(base * 2, base)
        self.classify = nn.Conv3d(base, n_phases, 1)

    def forward(self, x):
        a = self.enter(self.patchify(x))
        b = self.middle(self.down(a))
        a = self.mix(torch.cat([self.up(b), a], dim=1))
        return F.interpolate(self.classify(a), size=x.shape[2:], mode="trilinear", align_corners=False)
