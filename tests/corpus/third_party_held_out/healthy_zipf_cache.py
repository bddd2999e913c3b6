"""Serves descriptions of products. Their embeddings are cached without a limit, but there are only 300 products.

Popular products are cached at once, rare ones one by one during the whole run, ever more slowly.
"""

import random
import sys

import torch
from torch import nn


class Catalogue:
    def __init__(self, products, rng):
        self.rng = rng
        self.names = [f"product-{i}" for i in range(products)]
        self.weights = [1 / (1 + rank) ** 0.8 for rank in range(products)]

    def next_request(self):
        return self.rng.choices(self.names, self.weights)[0]


class ProductEmbeddings:
    def __init__(self, device):
        self.device = device
        self.encoder = nn.Sequential(nn.Linear(64, 192), nn.GELU(), nn.Linear(192, 96)).to(device)
        self.cache = {}

    @torch.no_grad()
    def get(self, name):
        if name not in self.cache:
            words = torch.randn(20, 64, device=self.device)
            self.cache[name] = self.encoder(words)
        return self.cache[name]


class Service:
    def __init__(self, embeddings, device):
        self.embeddings = embeddings
        self.device = device

    def handle(self, name):
        query = torch.randn(5, 96, device=self.device)
        return (query @ self.embeddings.get(name).T).amax(dim=1).sum()


def main():
    device = sys.argv[1]
    torch.manual_seed(61)
    torch.set_num_threads(1)
    catalogue = Catalogue(300, random.Random(61))
    embeddings = ProductEmbeddings(device)
    service = Service(embeddings, device)
    for _ in range(6000):
        service.handle(catalogue.next_request())
    print(f"{len(embeddings.cache)} of {len(catalogue.names)} products cached")


if __name__ == "__main__":
    main()
