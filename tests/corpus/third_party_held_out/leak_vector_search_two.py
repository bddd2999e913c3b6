"""A vector search service: new vectors go to a buffer, buffers become segments, small segments are merged.

Two leaks: segments that were merged stay in the list of the retired ones,
and the query log keeps the distances of all queries.
"""

import random
import sys

import torch

import pytorch_alloctrace as alloctrace


class Index:
    def __init__(self, width, device, buffer_size=8, capacity=2048):
        self.width = width
        self.device = device
        self.buffer_size = buffer_size
        self.capacity = capacity
        self.buffer = []
        self.segments = [torch.zeros(0, width, device=device)]
        self.retired = []

    def add(self, vector):
        self.buffer.append(vector)
        if len(self.buffer) == self.buffer_size:
            self.segments.append(torch.stack(self.buffer))  # LEAK 1
            self.buffer.clear()
        if len(self.segments) > 4:
            self.merge()

    def merge(self):
        merged = torch.cat(self.segments)[-self.capacity :].clone()  # LEAK 1
        self.retired.extend(self.segments)  # LEAK 1
        self.segments = [merged]

    def distances(self, query):
        return torch.cat([(segment - query).square().sum(dim=1) for segment in self.segments])


class Service:
    def __init__(self, device):
        self.index = Index(64, device)
        self.log = []
        self.device = device

    def insert(self):
        self.index.add(torch.randn(64, device=self.device))

    def search(self, count=5):
        distances = self.index.distances(torch.randn(64, device=self.device))
        ordered = distances.sort()  # LEAK 2
        self.log.append({"count": count, "distances": ordered.values})  # LEAK 2
        return ordered.indices[:count]


def main():
    torch.manual_seed(32)
    torch.set_num_threads(1)
    rng = random.Random(32)
    service = Service(sys.argv[1])
    for _ in range(16 * 20):
        service.insert()
    for _ in range(600):
        if rng.random() < 0.9:
            service.insert()
        service.search()
        alloctrace.step()
    print(f"{len(service.index.retired)} segments retired, {len(service.log)} queries")


if __name__ == "__main__":
    main()
