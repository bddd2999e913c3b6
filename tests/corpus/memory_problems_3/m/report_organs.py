"""Whole body CT: segment many structures with overlapping patches and report their volumes."""
import sys
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

STRUCTURES = 36


class ConvBlock(nn.Sequential):
    def __init__(self, a, b):
        super().__init__(
            nn.Conv3d(a, b, 3, padding=1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01, inplace=True),
            nn.Conv3d(b, b, 3, padding=1), nn.InstanceNorm3d(b), nn.LeakyReLU(0.01, inplace=True),
        )


class SegNet(nn.Module):
    def __init__(self, classes, width=8):
        super().__init__()
        self.enc1 = ConvBlock(1, width)
        self.enc2 = ConvBlock(width, 2 * width)
        self.bottom = ConvBlock(2 * width, 4 * width)
        self.dec2 = ConvBlock(6 * width, 2 * width)
        self.dec1 = ConvBlock(3 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool3d(a, 2))
        c = self.bottom(F.max_pool3d(b, 2))
        b = self.dec2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.dec1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return self.head(a)


def importance_map(patch, sigma=0.125):
    axes = [np.exp(-0.5 * ((np.arange(n) - (n - 1) / 2) / (n * sigma)) ** 2) for n in patch]
    w = axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]
    return torch.from_numpy(np.maximum(w / w.max(), 1e-3)).float()


def patch_starts(size, patch, overlap):
    step = max(1, int(patch * (1 - overlap)))
    starts = list(range(0, max(size - patch, 0) + 1, step))
    if starts[-1] != size - patch:
        starts.append(size - patch)
    return starts


class PatchPredictor:
    def __init__(self, net, patch=(32, 64, 64), overlap=0.5, device="cuda"):
        self.net = net
        self.patch = patch
        self.overlap = overlap
        self.device = device
        self.weight = importance_map(patch).to(device)

    def windows(self, shape):
        grids = [patch_starts(s, p, self.overlap) for s, p in zip(shape, self.patch)]
        for corner in product(*grids):
            yield tuple(slice(c, c + p) for c, p in zip(corner, self.patch))

    @torch.inference_mode()
    def __call__(self, volume):
        shape = volume.shape[-3:]
        volume = volume.to(self.device)
        output_shape = (1, STRUCTURES, *shape)
        scores = torch.zeros(output_shape, device=self.device)
        coverage = torch.zeros(output_shape, device=self.device)
        for window in self.windows(shape):
            pred = self.net(volume[(...,) + window])
            scores[(...,) + window] += pred * self.weight
            coverage[(...,) + window] += self.weight
        scores.div_(coverage)
        return scores.argmax(1).to(torch.uint8)


def load_case(index, rng):
    shape = (128 + 16 * (index % 2), 224, 224)
    hu = rng.integers(-1000, 1200, shape, dtype=np.int16)
    spacing = (2.5, 1.2, 1.2)
    volume = torch.from_numpy(hu).float().clamp_(-1000, 1000).div_(1000)
    return volume[None, None], spacing


def report(labels, spacing):
    voxel_ml = float(np.prod(spacing)) / 1000.0
    counts = np.bincount(labels.cpu().numpy().ravel(), minlength=STRUCTURES)[:STRUCTURES]
    return counts * voxel_ml


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    net = SegNet(STRUCTURES).to(device).eval()
    predictor = PatchPredictor(net, device=device)
    for case in range(3):
        volume, spacing = load_case(case, rng)
        labels = predictor(volume)
        ml = report(labels, spacing)
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        print(f"case {case}: {tuple(volume.shape[2:])} body {ml.sum() / 1000:.1f} l, peak {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
