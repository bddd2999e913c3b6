"""Benchmarks a monocular depth network on an indoor test split."""
import sys
import time

import torch
from torch import nn
import torch.nn.functional as F

SPLITS = {"quick": 120, "full": 330}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1)
        self.b = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class DepthNet(nn.Module):
    def __init__(self, width=48, bins=32):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4, padding=3)
        self.body = nn.Sequential(*[Residual(width) for _ in range(6)])
        self.bins = nn.Conv2d(width, bins, 1)
        self.register_buffer("centres", torch.linspace(0.1, 10.0, bins).view(1, bins, 1, 1))

    def forward(self, image):
        weight = self.bins(self.body(self.stem(image))).softmax(dim=1)
        depth = (weight * self.centres).sum(dim=1, keepdim=True)
        return F.interpolate(depth, size=image.shape[-2:], mode="bilinear", align_corners=False)


class Benchmark:
    """Errors over the whole split, with the scale of all predictions aligned by one median."""

    def __init__(self, net, device):
        self.net = net.eval()
        self.device = device
        self.predicted = []
        self.measured = []

    def frames(self, count, height=480, width=640):
        for number in range(count):
            image = torch.full((1, 3, height, width), (number % 10) / 10)
            depth = torch.full((1, 1, height, width), 0.5 + number % 9)
            yield image, depth

    @torch.inference_mode()
    def collect(self, count):
        for number, (image, depth) in enumerate(self.frames(count), 1):
            image = image.to(self.device)
            both = torch.cat([image, image.flip(-1)])
            first, second = self.net(both).chunk(2)
            self.predicted.append((first + second.flip(-1)) / 2)
            self.measured.append(depth.to(self.device))
            if number % 100 == 0:
                print(f"{number} frames", flush=True)

    @torch.inference_mode()
    def errors(self):
        predicted = torch.cat(self.predicted).flatten()
        measured = torch.cat(self.measured).flatten()
        predicted *= measured[::1000].median() / predicted[::1000].median().clamp(min=1e-3)
        relative = ((predicted - measured).abs() / measured).mean().item()
        rms = (predicted - measured).square().mean().sqrt().item()
        ratio = torch.maximum(predicted / measured, measured / predicted)
        return {"abs_rel": relative, "rms": rms, "d1": (ratio < 1.25).float().mean().item()}


def main(split="full"):
    torch.manual_seed(0)
    device = torch.device("cuda")
    benchmark = Benchmark(DepthNet().to(device), device)
    started = time.time()
    benchmark.collect(SPLITS[split])
    print(f"predicted {SPLITS[split]} frames in {time.time() - started:.1f} s", flush=True)
    for name, value in benchmark.errors().items():
        print(f"{name:>8} {value:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:2] if sys.argv[1:2] in (["quick"], ["full"]) else [])
