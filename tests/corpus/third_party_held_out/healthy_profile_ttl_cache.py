"""Recommends articles; the profile of a user is cached for 60 requests, and at most 150 profiles at a time."""

import collections
import random
import sys

import torch
from torch import nn


class TtlCache:
    def __init__(self, size, lifetime):
        self.size = size
        self.lifetime = lifetime
        self.entries = collections.OrderedDict()
        self.misses = 0

    def get(self, key, now, make):
        self.expire(now)
        if key in self.entries:
            return self.entries[key][1]
        self.misses += 1
        value = make(key)
        self.entries[key] = (now, value)
        if len(self.entries) > self.size:
            self.entries.popitem(last=False)
        return value

    def expire(self, now):
        while self.entries:
            key, (made, _value) = next(iter(self.entries.items()))
            if now - made < self.lifetime:
                break
            del self.entries[key]


class Recommender:
    def __init__(self, device):
        self.device = device
        self.tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).to(device)
        self.articles = nn.functional.normalize(torch.randn(400, 64, device=device), dim=-1)
        self.cache = TtlCache(size=150, lifetime=60)

    def profile(self, user):
        history = torch.randn(10 + user % 20, 64, device=self.device)
        return self.tower(history)

    @torch.no_grad()
    def handle(self, user, now):
        profile = self.cache.get(user, now, self.profile)
        return (self.articles @ profile.mean(dim=0)).topk(8).indices


def main():
    torch.manual_seed(75)
    torch.set_num_threads(1)
    rng = random.Random(75)
    recommender = Recommender(sys.argv[1])
    for now in range(1500):
        # New users come all the time; many requests are by one of the last few.
        newest = now // 2
        recommender.handle(max(0, newest - int(rng.expovariate(0.05))), now)
    print(f"{recommender.cache.misses} misses, {len(recommender.cache.entries)} profiles cached")


if __name__ == "__main__":
    main()
