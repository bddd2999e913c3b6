"""Terrain service: super-resolved elevation tiles, the most recently used ones stay on the GPU for compositing."""
import math
import random
from collections import OrderedDict
from typing import Iterable, Tuple

import torch
from torch import Tensor, nn

TileKey = Tuple[int, int, int]


class ByteBoundedLru:
    """Keeps tensors up to a number of bytes, drops those that were not used for the longest time."""

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self.used = 0
        self.entries: "OrderedDict[TileKey, Tensor]" = OrderedDict()
        self.hits = self.misses = 0

    def get(self, key):
        if key in self.entries:
            self.entries.move_to_end(key)
            self.hits += 1
            return self.entries[key]
        self.misses += 1
        return None

    def put(self, key, tile):
        self.entries[key] = tile
        self.used += tile.numel() * tile.element_size()
        while self.used > self.max_bytes:
            _, old = self.entries.popitem(last=False)
            self.used -= old.numel() * old.element_size()


class SuperResolver(nn.Module):
    def __init__(self, width=32, scale=4):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(width, scale * scale, 3, padding=1))
        self.shuffle = nn.PixelShuffle(scale)

    def forward(self, x):
        return self.shuffle(self.body(x))


class TerrainService:
    def __init__(self, cache_bytes):
        self.net = SuperResolver().cuda().eval()
        self.cache = ByteBoundedLru(cache_bytes)

    def read_coarse(self, key):
        z, x, y = key
        row = torch.linspace(0, math.pi * (1 + z), 256)
        return (torch.sin(row + x)[None, :] * torch.cos(row + y)[:, None])[None, None]

    @torch.inference_mode()
    def tile(self, key):
        found = self.cache.get(key)
        if found is None:
            found = self.net(self.read_coarse(key).cuda())
            self.cache.put(key, found)
        return found

    @torch.inference_mode()
    def view(self, keys: Iterable[TileKey]):
        stack = torch.cat([self.tile(k) for k in keys])
        return nn.functional.adaptive_avg_pool2d(stack, 128).cpu()


def flight(steps, rng):
    """Camera path of a user: neighbouring tiles, sometimes a jump."""
    x, y = 500, 500
    for _ in range(steps):
        if rng.random() < 0.03:
            x, y = rng.randrange(1000), rng.randrange(1000)
        x, y = x + rng.choice([-1, 0, 1]), y + rng.choice([-1, 0, 1])
        yield [(12, x + i, y + j) for i in range(3) for j in range(3)]


def main():
    service = TerrainService(cache_bytes=600 * 2 ** 20)
    for number, keys in enumerate(flight(300, random.Random(8))):
        service.view(keys)
        if number % 75 == 74:
            c = service.cache
            print(f"{number + 1} views, {len(c.entries)} tiles cached ({c.used / 2 ** 20:.0f} MiB), "
                  f"hit rate {c.hits / (c.hits + c.misses):.2f}")


if __name__ == "__main__":
    main()
