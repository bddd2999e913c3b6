"""A data pipeline that prefetches batches and keeps them until the consumer acknowledges them.

The consumer acknowledges plain batches only: the augmented ones are sent under another name and stay in flight.
"""

import sys
from collections import deque

import torch

import pytorch_alloctrace as alloctrace


class Prefetcher:
    def __init__(self, device, depth=3):
        self.device = device
        self.ready = deque()
        self.depth = depth
        self.in_flight = {}
        self.counter = 0

    def _load(self):
        number = self.counter
        self.counter += 1
        batch = torch.randn(48, 3, 48, 48).to(self.device)
        if number % 3 == 0:
            name = f"augmented-{number}"
            batch = batch.flip(-1) + 0.05 * torch.randn_like(batch)  # LEAK
        else:
            name = f"plain-{number}"
        self.in_flight[name] = batch  # LEAK
        self.ready.append((number, batch))

    def __iter__(self):
        return self

    def __next__(self):
        while len(self.ready) < self.depth:
            self._load()  # LEAK
        return self.ready.popleft()

    def acknowledge(self, number):
        self.in_flight.pop(f"plain-{number}", None)


def mean_and_std(batch):
    return batch.mean(dim=(0, 2, 3)), batch.std(dim=(0, 2, 3))


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    prefetcher = Prefetcher(sys.argv[1])
    total = torch.zeros(3, device=sys.argv[1])
    for number, batch in prefetcher:
        if number == 120:
            break
        mean, std = mean_and_std(batch)
        total += mean / std
        prefetcher.acknowledge(number)
        alloctrace.step()
    print("signal to noise:", [round(v, 4) for v in total.tolist()])


if __name__ == "__main__":
    main()
