"""A server with a load that swings like day and night; clients collect their results a few ticks later."""

import math
import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class ResultStore:
    def __init__(self):
        self.results = {}

    def put(self, key, value):
        self.results[key] = value

    def take(self, key):
        return self.results.pop(key)


class Worker:
    def __init__(self, device):
        self.device = device
        self.model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 512)).to(device)

    @torch.no_grad()
    def run(self, keys, store):
        outputs = self.model(torch.randn(len(keys), 128, device=self.device))
        for key, output in zip(keys, outputs, strict=True):
            store.put(key, output.clone())


def main():
    torch.manual_seed(15)
    torch.set_num_threads(1)
    rng = random.Random(15)
    worker, store = Worker(sys.argv[1]), ResultStore()
    due = {}
    next_key = 0
    for tick in range(420):
        load = int(6 + 5 * math.sin(2 * math.pi * tick / 120)) + rng.randint(0, 2)
        keys = list(range(next_key, next_key + load))
        next_key += load
        worker.run(keys, store)
        for key in keys:
            due.setdefault(tick + rng.randint(1, 9), []).append(key)
        for key in due.pop(tick, []):
            store.take(key)
        alloctrace.step()
    print(f"{next_key} requests, {len(store.results)} not collected yet")


if __name__ == "__main__":
    main()
