import math

import torch
import torch.nn.functional as F


def sample(volume, coords):
    """Bilinear lookup at pixel coordinates."""
    h, w = volume.shape[-2:]
    x, y = coords.split([1, 1], dim=-1)
    grid = torch.cat([2 * x / (w - 1) - 1, 2 * y / (h - 1) - 1], dim=-1)
    return F.grid_sample(volume, grid, align_corners=True)


class CorrBlock:
    def __init__(self, fmap1, fmap2, levels=4, radius=4):
        self.levels = levels
        self.radius = radius
        self.pyramid = []
        corr = self.correlate(fmap1, fmap2)
        n, h, w, _, h2, w2 = corr.shape
        corr = corr.reshape(n * h * w, 1, h2, w2)
        self.pyramid.append(corr)
        for _ in range(levels - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.pyramid.append(corr)

    @staticmethod
    def correlate(fmap1, fmap2):
        n, c, h, w = fmap1.shape
        a = fmap1.view(n, c, h * w)
        b = fmap2.view(n, c, h * w)
        corr = torch.matmul(a.transpose(1, 2), b)
        corr = corr.view(n, h, w, 1, h, w)
        return corr / math.sqrt(c)

    def __call__(self, coords):
        r = self.radius
        n, _, h, w = coords.shape
        centre = coords.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
        step = torch.linspace(-r, r, 2 * r + 1, device=coords.device)
        delta = torch.stack(torch.meshgrid(step, step, indexing="ij"), dim=-1).view(1, 2 * r + 1, 2 * r + 1, 2)
        found = []
        for level, corr in enumerate(self.pyramid):
            window = sample(corr, centre / 2 ** level + delta)
            found.append(window.view(n, h, w, -1))
        return torch.cat(found, dim=-1).permute(0, 3, 1, 2).contiguous()
