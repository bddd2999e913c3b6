"""A thread prepares augmented batches ahead of training in a bounded queue; it is faster than training, so the queue fills at once and stays full."""

import queue
import sys
import threading

import torch
import torch.nn.functional as F
from torch import nn


class Prefetcher:
    def __init__(self, count, depth, device):
        self.queue = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self._fill, args=(count, device), daemon=True)
        self.thread.start()

    def _fill(self, count, device):
        generator = torch.Generator().manual_seed(109)
        for _ in range(count):
            images = torch.rand(8, 3, 24, 24, generator=generator).to(device)
            images = torch.cat([images, images.flip(3)])
            labels = torch.randint(0, 10, (8,), generator=generator).to(device).repeat(2)
            self.queue.put((images, labels))
        self.queue.put(None)

    def __iter__(self):
        while (batch := self.queue.get()) is not None:
            yield batch
        self.thread.join()


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    )


def main():
    device = sys.argv[1]
    torch.manual_seed(109)
    torch.set_num_threads(1)
    model = network().to(device)
    model(torch.zeros(1, 3, 24, 24, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    batches = 0
    for images, labels in Prefetcher(260, depth=24, device=device):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        batches += 1
    print(f"{batches} batches")


if __name__ == "__main__":
    main()
