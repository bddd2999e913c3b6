"""Trains a one-stage detector on images of many sizes; the anchors of a size are computed once and kept.

Report: https://github.com/pytorch/vision/pull/1657 ("Fix rpn memory leak": rpn._cache keeps its tensors for ever) and
        https://github.com/pytorch/vision/issues/3667
Cause:  the cache of anchors is keyed by the sizes of the feature maps, and images come in almost as many sizes as
        there are steps; nothing is ever evicted.
Line:   self._cache[key] = anchors
Cure:   clear the cache after each forward, or bound it (an LRU of a few sizes).
"""
import random

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 7, stride=4, padding=3), nn.ReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU()) for _ in range(3)
        )

    def forward(self, images):
        features = [self.stem(images)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        return features


class AnchorGenerator(nn.Module):
    """Boxes of several sizes and aspect ratios around each cell of each feature map."""

    def __init__(self, sizes=(32, 64, 128, 256), ratios=(0.5, 1.0, 2.0)):
        super().__init__()
        self.sizes = sizes
        self.ratios = ratios
        self._cache = {}

    def cell_anchors(self, size, device):
        ratios = torch.tensor(self.ratios, device=device).sqrt()
        widths, heights = size / ratios, size * ratios
        return torch.stack([-widths, -heights, widths, heights], dim=1) / 2

    def grid_anchors(self, grid_sizes, strides, device):
        anchors = []
        for (rows, columns), stride, size in zip(grid_sizes, strides, self.sizes):
            y = torch.arange(rows, device=device, dtype=torch.float32) * stride
            x = torch.arange(columns, device=device, dtype=torch.float32) * stride
            y, x = torch.meshgrid(y, x, indexing="ij")
            shifts = torch.stack([x, y, x, y], dim=-1).reshape(-1, 1, 4)
            anchors.append((shifts + self.cell_anchors(size, device)).reshape(-1, 4))
        return torch.cat(anchors)

    def cached_grid_anchors(self, grid_sizes, strides, device):
        key = str(grid_sizes) + str(strides)
        if key in self._cache:
            return self._cache[key]
        anchors = self.grid_anchors(grid_sizes, strides, device)
        self._cache[key] = anchors  # CAUSE
        return anchors

    def forward(self, images, features):
        grid_sizes = [tuple(feature.shape[-2:]) for feature in features]
        strides = [images.shape[-2] // rows for rows, _ in grid_sizes]
        return self.cached_grid_anchors(grid_sizes, strides, images.device)


class Detector(nn.Module):
    def __init__(self, width=24, anchors_per_cell=3):
        super().__init__()
        self.backbone = Backbone(width)
        self.anchors = AnchorGenerator()
        self.objectness = nn.Conv2d(width, anchors_per_cell, 1)
        self.boxes = nn.Conv2d(width, anchors_per_cell * 4, 1)

    def forward(self, images):
        features = self.backbone(images)
        anchors = self.anchors(images, features)
        scores = torch.cat([self.objectness(f).permute(0, 2, 3, 1).reshape(-1) for f in features])
        deltas = torch.cat([self.boxes(f).permute(0, 2, 3, 1).reshape(-1, 4) for f in features])
        return anchors + deltas * 0.1, scores


def random_image(generator, device):
    """A photo resized so that its short side is about 600 pixels, as it is, without a fixed aspect ratio."""
    short = generator.randrange(480, 800)
    long = int(short * generator.uniform(1.0, 1.8))
    height, width = (short, long) if generator.random() < 0.6 else (long, short)
    return torch.rand(1, 3, height, width).to(device)


def train(steps=150):
    device = torch.device("cuda")
    generator = random.Random(0)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(1, steps + 1):
        boxes, scores = model(random_image(generator, device))
        loss = boxes.abs().mean() * 1e-3 + nn.functional.softplus(scores).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")


if __name__ == "__main__":
    torch.manual_seed(0)
    train()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")
