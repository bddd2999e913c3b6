"""An embedding server with an LRU cache of 100 texts; queries are drawn from thousands, the popular ones more often."""

import random
import sys
from collections import OrderedDict

import torch
from torch import nn


class LruCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.entries = OrderedDict()
        self.hits = 0

    def get(self, key, compute):
        if key in self.entries:
            self.entries.move_to_end(key)
            self.hits += 1
            return self.entries[key]
        value = self.entries[key] = compute(key)
        if len(self.entries) > self.capacity:
            self.entries.popitem(last=False)
        return value


class Embedder:
    def __init__(self, device):
        self.device = device
        self.model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 768)).to(device)

    @torch.no_grad()
    def __call__(self, text):
        features = torch.randn(64, generator=torch.Generator().manual_seed(text))
        return self.model(features.to(self.device))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = random.Random(0)
    embed, cache = Embedder(sys.argv[1]), LruCache(100)
    for _ in range(1600):
        text = int(rng.paretovariate(0.6)) % 5000
        vector = cache.get(text, embed)
        vector.norm()
    print(cache.hits, "hits,", len(cache.entries), "entries")


if __name__ == "__main__":
    main()
