"""A loader thread fills a queue of at most six batches on the device while the consumer computes statistics of them."""

import queue
import sys
import threading

import torch

import pytorch_alloctrace as alloctrace


class Loader(threading.Thread):
    def __init__(self, device, batches, depth=6):
        super().__init__(daemon=True)
        self.device = device
        self.batches = batches
        self.queue = queue.Queue(maxsize=depth)

    def run(self):
        generator = torch.Generator().manual_seed(18)
        for _ in range(self.batches):
            images = torch.rand(32, 3, 64, 64, generator=generator)
            self.queue.put(images.to(self.device) * 2 - 1)
        self.queue.put(None)

    def __iter__(self):
        self.start()
        return iter(self.queue.get, None)


class Statistics:
    def __init__(self, device):
        self.count = 0
        self.mean = torch.zeros(3, 64, 64, device=device)
        self.square = torch.zeros(3, 64, 64, device=device)

    def update(self, batch):
        self.count += len(batch)
        delta = batch - self.mean
        self.mean = self.mean + delta.sum(dim=0) / self.count
        self.square = self.square + (delta * (batch - self.mean)).sum(dim=0)


def main():
    device = sys.argv[1]
    torch.set_num_threads(1)
    statistics = Statistics(device)
    for batch in Loader(device, 160):
        statistics.update(batch)
        alloctrace.step()
    print(statistics.count, "images")


if __name__ == "__main__":
    main()
