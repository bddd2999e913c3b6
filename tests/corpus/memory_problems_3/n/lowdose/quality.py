"""Image quality over the course of a run (Hounsfield range scaled to 0..1)."""
import math

import torch
from torch import nn
from torch.nn import functional as F


def gaussian_window(size=11, sigma=1.5):
    axis = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
    line = torch.exp(-(axis**2) / (2 * sigma**2))
    line = line / line.sum()
    return (line[:, None] * line[None, :])[None, None]


class StructuralSimilarity(nn.Module):
    def __init__(self, c1=0.01**2, c2=0.03**2):
        super().__init__()
        self.c1, self.c2 = c1, c2
        self.register_buffer("window", gaussian_window())

    def smooth(self, image):
        return F.conv2d(image, self.window, padding=self.window.shape[-1] // 2)

    def forward(self, a, b):
        mean_a, mean_b = self.smooth(a), self.smooth(b)
        var_a = self.smooth(a * a) - mean_a * mean_a
        var_b = self.smooth(b * b) - mean_b * mean_b
        cov = self.smooth(a * b) - mean_a * mean_b
        top = (2 * mean_a * mean_b + self.c1) * (2 * cov + self.c2)
        bottom = (mean_a * mean_a + mean_b * mean_b + self.c1) * (var_a + var_b + self.c2)
        return (top / bottom).mean()


class QualityMeter(nn.Module):
    """Mean similarity and error of everything seen since the start of the run."""

    def __init__(self):
        super().__init__()
        self.similarity = StructuralSimilarity()
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("squared", torch.zeros(()))
        self.batches = 0

    def update(self, output, target):
        self.total = self.total + self.similarity(output, target)
        self.squared = self.squared + F.mse_loss(output, target)
        self.batches += 1

    def compute(self):
        ssim = self.total.item() / self.batches
        psnr = -10 * math.log10(max(self.squared.item() / self.batches, 1e-8))
        return {"ssim": ssim, "psnr": psnr}
