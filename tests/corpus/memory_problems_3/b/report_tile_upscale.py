"""Benchmarks a x2 super-resolution network on full images, tile by tile."""
import math
import os
import sys
import time

import torch
from torch import nn


class MeanShift(nn.Conv2d):
    def __init__(self, sign):
        super().__init__(3, 3, kernel_size=1)
        with torch.no_grad():
            self.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
            self.bias.copy_(sign * torch.tensor([0.4488, 0.4371, 0.4040]))
        for p in self.parameters():
            p.requires_grad = False


class ResidualBlock(nn.Module):
    def __init__(self, feats, scale=0.1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(feats, feats, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(feats, feats, 3, padding=1))
        self.scale = scale

    def forward(self, x):
        return x + self.body(x).mul(self.scale)


class SRNet(nn.Module):
    def __init__(self, feats=64, blocks=16, scale=2):
        super().__init__()
        self.sub_mean = MeanShift(-1)
        self.add_mean = MeanShift(1)
        self.head = nn.Conv2d(3, feats, 3, padding=1)
        self.body = nn.Sequential(*[ResidualBlock(feats) for _ in range(blocks)])
        self.tail = nn.Sequential(
            nn.Conv2d(feats, feats * scale ** 2, 3, padding=1), nn.PixelShuffle(scale),
            nn.Conv2d(feats, 3, 3, padding=1))

    def forward(self, x):
        x = self.head(self.sub_mean(x))
        x = x + self.body(x)
        return self.add_mean(self.tail(x))


class ChopForward:
    """Splits an image into overlapping tiles, so that large images fit."""

    def __init__(self, model, scale, tile=192, shave=12):
        self.model = model
        self.scale = scale
        self.tile = tile
        self.shave = shave

    def boxes(self, height, width):
        for top in range(0, height, self.tile):
            for left in range(0, width, self.tile):
                yield (max(0, top - self.shave), min(height, top + self.tile + self.shave),
                       max(0, left - self.shave), min(width, left + self.tile + self.shave))

    def __call__(self, image):
        _, _, height, width = image.shape
        boxes = list(self.boxes(height, width))
        tiles = []
        for top, bottom, left, right in boxes:
            tiles.append(self.model(image[:, :, top:bottom, left:right]))
        s = self.scale
        canvas = torch.empty(1, 3, height * s, width * s, device=image.device)
        for (top, bottom, left, right), tile in zip(boxes, tiles):
            canvas[:, :, top * s:bottom * s, left * s:right * s] = tile
        return canvas


def psnr(sr, hr):
    mse = (sr - hr).pow(2).mean().item()
    return -10 * math.log10(max(mse, 1e-10))


def benchmark_images():
    sizes = {"Set5": [(256, 256), (144, 144), (128, 128), (140, 140), (114, 172)],
             "Set14": [(240, 250), (288, 360), (256, 256), (361, 253)],
             "B100": [(160, 240), (240, 160)] * 30,
             "Urban100": [(384, 512), (512, 402), (512, 340)],
             "DIV2K": [(702, 1020), (678, 1020), (1020, 768)]}
    for dataset, shapes in sizes.items():
        yield dataset, [torch.rand(1, 3, 2 * h, 2 * w) for h, w in shapes]


def evaluate(model, device, scale):
    model.eval()
    chop = ChopForward(model, scale)
    for dataset, images in benchmark_images():
        total = 0.0
        started = time.perf_counter()
        for hr in images:
            lr = nn.functional.interpolate(hr, scale_factor=1 / scale, mode="bicubic", antialias=True)
            sr = chop(lr.to(device)).clamp(0, 1)
            total += psnr(sr, hr.to(device))
        seconds = time.perf_counter() - started
        print(f"{dataset:10s} PSNR {total / len(images):.2f} dB, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    checkpoint = sys.argv[1] if len(sys.argv) > 1 else None
    network = SRNet(scale=2)
    if checkpoint and os.path.exists(checkpoint):
        network.load_state_dict(torch.load(checkpoint, map_location="cpu"))
    evaluate(network.to("cuda"), "cuda", scale=2)
