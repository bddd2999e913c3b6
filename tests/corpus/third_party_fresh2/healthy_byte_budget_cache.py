"""A retrieval service caches passages of very different sizes in its own cache, which evicts by a budget of bytes and not of entries."""

import random
import sys
from collections import OrderedDict

import torch
from torch import nn


class ByteCache:
    def __init__(self, budget):
        self.budget = budget
        self.used = 0
        self.items = OrderedDict()

    def __contains__(self, key):
        return key in self.items

    def __getitem__(self, key):
        self.items.move_to_end(key)
        return self.items[key]

    def __setitem__(self, key, tensor):
        size = tensor.numel() * tensor.element_size()
        while self.items and self.used + size > self.budget:
            _, old = self.items.popitem(last=False)
            self.used -= old.numel() * old.element_size()
        self.items[key] = tensor
        self.used += size


class Retriever:
    def __init__(self, device):
        self.device = device
        self.encoder = nn.Sequential(nn.Linear(48, 128), nn.GELU(), nn.Linear(128, 64)).to(device).eval()
        self.cache = ByteCache(budget=5 << 20)
        self.misses = 0

    def passage(self, key, words):
        if key not in self.cache:
            self.misses += 1
            self.cache[key] = self.encoder(torch.randn(words, 48, device=self.device))
        return self.cache[key]

    @torch.no_grad()
    def score(self, candidates):
        query = torch.randn(6, 64, device=self.device)
        scores = [(query @ self.passage(key, words).T).amax(dim=1).sum() for key, words in candidates]
        return torch.stack(scores)


def main():
    torch.manual_seed(107)
    torch.set_num_threads(1)
    rng = random.Random(107)
    library = {f"passage-{i}": int(8 * 1.6 ** rng.randint(0, 8)) for i in range(4000)}
    keys = list(library)
    retriever = Retriever(sys.argv[1])
    for _ in range(500):
        chosen = rng.sample(keys[:400], 3) + [rng.choice(keys)]
        retriever.score([(key, library[key]) for key in chosen])
    print(f"{retriever.misses} misses, {retriever.cache.used >> 10} KiB of {retriever.cache.budget >> 10} used")


if __name__ == "__main__":
    main()
