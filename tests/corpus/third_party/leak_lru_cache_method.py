"""A retrieval service that encodes queries and ranks documents.

The encoder's method is wrapped in an unbounded lru_cache, and hardly any query comes twice.
"""

import functools
import random
import sys

import torch
from torch import nn

WORDS = 3000


class QueryEncoder:
    def __init__(self, device):
        self.device = device
        self.embedding = nn.Embedding(WORDS, 384).to(device)
        self.projection = nn.Linear(384, 1024).to(device)

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def encode(self, words):
        ids = torch.tensor(words, device=self.device)
        pooled = self.embedding(ids).mean(dim=0)
        return self.projection(pooled)  # LEAK


class Retriever:
    def __init__(self, device):
        self.encoder = QueryEncoder(device)
        self.documents = torch.randn(400, 1024, device=device)

    @torch.no_grad()
    def search(self, words, count=5):
        query = self.encoder.encode(tuple(words))  # LEAK
        return (self.documents @ query).topk(count).indices


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    rng = random.Random(19)
    retriever = Retriever(sys.argv[1])
    popular = [[rng.randrange(WORDS) for _ in range(4)] for _ in range(10)]
    for _ in range(1500):
        fresh = [rng.randrange(WORDS) for _ in range(rng.randint(2, 7))]
        retriever.search(rng.choice(popular) if rng.random() < 0.3 else fresh)
    print(retriever.encoder.encode.cache_info())


if __name__ == "__main__":
    main()
