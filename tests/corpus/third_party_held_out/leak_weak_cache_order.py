"""A cache of document embeddings with weak references, so that an entry lives only while somebody uses it.

For statistics the cache also lists the entries in the order of their use; this list holds them all.
"""

import random
import sys
import weakref

import torch
from torch import nn


class Embedding:
    """A tensor alone would do, but the service passes the name along."""

    def __init__(self, name, vector):
        self.name = name
        self.vector = vector


class WeakCache:
    def __init__(self):
        self.entries = weakref.WeakValueDictionary()
        self.order = []
        self.hits = 0

    def get(self, name, make):
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Embedding(name, make())  # LEAK
        else:
            self.hits += 1
        self.order.append(entry)  # LEAK
        return entry


class Searcher:
    def __init__(self, device):
        self.device = device
        self.encoder = nn.Sequential(nn.Linear(128, 256), nn.Tanh()).to(device)
        self.cache = WeakCache()

    def embed(self, passages):
        text = torch.randn(passages, 128, device=self.device)
        return nn.functional.normalize(self.encoder(text), dim=-1)  # LEAK

    @torch.no_grad()
    def compare(self, left, right):
        a = self.cache.get(left, lambda: self.embed(12))  # LEAK
        b = self.cache.get(right, lambda: self.embed(12))  # LEAK
        return (a.vector @ b.vector.T).amax(dim=1).mean()


def main():
    torch.manual_seed(26)
    torch.set_num_threads(1)
    rng = random.Random(26)
    searcher = Searcher(sys.argv[1])
    for newest in range(1, 251):
        # News: each comparison is between the latest document and a recent one.
        searcher.compare(f"news-{newest}", f"news-{max(0, newest - rng.randint(1, 5))}")
    print(f"{searcher.cache.hits} hits among {len(searcher.cache.order)} uses")


if __name__ == "__main__":
    main()
