"""Restore and enlarge scanned family photographs by a factor of four."""
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Scan:
    name: str
    height: int
    width: int

    def read(self):
        rng = np.random.default_rng(len(self.name) + self.height)
        row = rng.integers(0, 255, (1, self.width, 3), dtype=np.uint8)
        return np.repeat(row, self.height, axis=0)


ALBUM = [
    Scan("wedding_1961_thumb.png", 360, 512),
    Scan("school_1974_thumb.png", 480, 480),
    Scan("harbour_1958_full.png", 1400, 2048),
    Scan("portrait_1949_full.png", 1536, 1152),
]


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.bias = nn.Parameter(torch.zeros(heads, window * window, window * window))

    def forward(self, x):
        n, h, w, c = x.shape
        s = self.window
        x = x.view(n, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)
        q, k, v = self.qkv(x).view(-1, s * s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weight = (q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5 + self.bias).softmax(-1)
        x = self.proj((weight @ v).transpose(1, 2).reshape(-1, s * s, c))
        return x.view(n, h // s, w // s, s, s, c).transpose(2, 3).reshape(n, h, w, c)


class Layer(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, heads, window)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class RestoreNet(nn.Module):
    window = 8

    def __init__(self, dim=96, depth=12, heads=4, scale=4):
        super().__init__()
        self.scale = scale
        self.first = nn.Conv2d(3, dim, 3, padding=1)
        self.body = nn.Sequential(*(Layer(dim, heads, self.window) for _ in range(depth)))
        self.last = nn.Conv2d(dim, 3 * scale ** 2, 1)

    def forward(self, x):
        h, w = x.shape[-2:]
        x = F.pad(x, (0, -w % self.window, 0, -h % self.window), mode="replicate")
        x = self.first(x)
        x = x + self.body(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.pixel_shuffle(self.last(x), self.scale)[..., : h * self.scale, : w * self.scale]


class Enlarger:
    scale = 4

    def __init__(self, device):
        self.device = device
        self.model = RestoreNet().to(device).eval()

    def to_tensor(self, image):
        return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255

    def to_image(self, tensor):
        return tensor.squeeze(0).clamp(0, 1).mul(255).byte().permute(1, 2, 0).numpy()

    @torch.no_grad()
    def enlarge(self, image):
        picture = self.to_tensor(image)
        output = self.model(picture.to(self.device)).cpu()
        return self.to_image(output)


def main(device):
    torch.manual_seed(0)
    enlarger = Enlarger(device)
    for scan in ALBUM:
        image = scan.read()
        result = enlarger.enlarge(image)
        print(f"{scan.name}: {image.shape[1]}x{image.shape[0]} -> {result.shape[1]}x{result.shape[0]}", flush=True)


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
