"""A server of one base model with low-rank adapters per customer, loaded when first needed, at most eight at a time."""

import random
import sys
from collections import OrderedDict

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class Adapter:
    def __init__(self, customer, width, rank, device):
        generator = torch.Generator().manual_seed(customer)
        self.down = torch.randn(rank, width, generator=generator).to(device)
        self.up = torch.randn(width, rank, generator=generator).to(device)

    def __call__(self, x):
        return x @ self.down.T @ self.up.T


class AdapterCache:
    def __init__(self, load, limit):
        self.load = load
        self.limit = limit
        self.loaded = OrderedDict()
        self.evictions = 0

    def get(self, customer):
        if customer in self.loaded:
            self.loaded.move_to_end(customer)
        else:
            if len(self.loaded) >= self.limit:
                self.loaded.popitem(last=False)
                self.evictions += 1
            self.loaded[customer] = self.load(customer)
        return self.loaded[customer]


def main():
    device = sys.argv[1]
    torch.manual_seed(20)
    torch.set_num_threads(1)
    rng = random.Random(20)
    base = nn.Linear(256, 256).to(device)
    cache = AdapterCache(lambda customer: Adapter(customer, 256, 16, device), limit=8)
    for request in range(500):
        # new customers arrive all the time, most requests come from the recent ones
        newest = 1 + request // 10
        customer = max(0, newest - int(rng.expovariate(0.4)))
        with torch.inference_mode():
            x = torch.randn(4, 256, device=device)
            torch.relu(base(x) + cache.get(customer)(x)).sum()
        alloctrace.step()
    print(cache.evictions, "adapters evicted")


if __name__ == "__main__":
    main()
