"""A retrieval service: 150 shards of the index are loaded one after the other, then questions are answered.

A third of the calls to the device belongs to loading, where memory only grows.
"""

import random
import sys

import torch
from torch import nn


class Shard:
    def __init__(self, vectors):
        self.scale = vectors.abs().amax(dim=1, keepdim=True) / 127
        self.codes = torch.round(vectors / self.scale.clamp_min(1e-6)).to(torch.int8)

    def score(self, query):
        return (self.codes.float() * self.scale) @ query


class Index:
    def __init__(self, device):
        self.device = device
        self.shards = []

    def load(self, rows, width):
        # A file in real life.
        self.shards.append(Shard(torch.randn(rows, width).to(self.device)))

    def search(self, query, shards, count):
        scores = torch.cat([self.shards[number].score(query) for number in shards])
        return scores.topk(count).values


class Service:
    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.encoder = nn.Sequential(nn.Linear(100, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
        self.index = Index(device)

    def start(self, shards):
        for _ in range(shards):
            self.index.load(self.rng.randint(200, 300), 64)

    def answer(self):
        query = self.encoder(torch.randn(100, device=self.device))
        probed = self.rng.sample(range(len(self.index.shards)), 6)
        return self.index.search(query, probed, count=10)


def main():
    torch.manual_seed(80)
    torch.set_num_threads(1)
    service = Service(sys.argv[1], random.Random(80))
    with torch.inference_mode():
        service.start(150)
        for _ in range(350):
            service.answer()
    print(f"{len(service.index.shards)} shards, 350 answers")


if __name__ == "__main__":
    main()
