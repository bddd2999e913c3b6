"""Sends sensor records through a model into a store; records that the store refuses are tried again later.

From record 800 on, one station sends records of a new kind, which the store refuses each time: they are retried for ever.
"""

import heapq
import itertools
import random
import sys

import torch
from torch import nn


class Refused(Exception):
    pass


class Store:
    def __init__(self, rng):
        self.rng = rng
        self.rows = 0

    def write(self, station, version, values):
        if version > 1 or self.rng.random() < 0.05:
            raise Refused(station)
        self.rows += len(values)


class Pipeline:
    def __init__(self, device, store):
        self.device = device
        self.store = store
        self.model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 48)).to(device).eval()
        self.retries = []
        self.order = itertools.count()
        self.clock = 0
        self.tried_again = 0

    @torch.no_grad()
    def enrich(self, readings):
        mean, std = readings.mean(dim=0), readings.std(dim=0).clamp_min(1e-3)
        return self.model((readings - mean) / std)  # LEAK

    def send(self, station, version, values, attempt):
        try:
            self.store.write(station, version, values)
        except Refused:
            due = self.clock + min(2**attempt, 64)
            heapq.heappush(self.retries, (due, next(self.order), station, version, values, attempt + 1))  # LEAK

    def retry_due(self):
        while self.retries and self.retries[0][0] <= self.clock:
            _, _, station, version, values, attempt = heapq.heappop(self.retries)
            self.tried_again += 1
            self.send(station, version, values, attempt)  # LEAK

    def receive(self, station, version, readings):
        self.clock += 1
        values = self.enrich(readings.to(self.device))  # LEAK
        self.send(station, version, values, attempt=1)  # LEAK
        self.retry_due()  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(23)
    torch.set_num_threads(1)
    rng = random.Random(23)
    pipeline = Pipeline(device, Store(rng))
    for record in range(2600):
        station = rng.randrange(6)
        version = 2 if record >= 800 and station == 4 else 1
        readings = torch.randn(rng.randint(60, 200), 24)
        pipeline.receive(station, version, readings)  # LEAK
    print(f"{pipeline.store.rows} rows, {pipeline.tried_again} tried again, {len(pipeline.retries)} wait")


if __name__ == "__main__":
    main()
