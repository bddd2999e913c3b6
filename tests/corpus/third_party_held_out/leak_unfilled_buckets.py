"""Groups requests by adapter and length, and runs a group as a batch on a worker thread once it is full.

Most requests use a popular adapter. The rest come from private adapters,
whose groups never get full and are never flushed.
"""

import queue
import random
import sys
import threading

import torch
from torch import nn


class Batcher:
    def __init__(self, batch_size, ready):
        self.batch_size = batch_size
        self.ready = ready
        self.buckets = {}

    def add(self, adapter, tokens):
        key = (adapter, tokens.shape[0] // 16)
        bucket = self.buckets.setdefault(key, [])
        bucket.append(tokens)  # LEAK
        if len(bucket) == self.batch_size:
            self.ready.put(self.buckets.pop(key))


class Worker(threading.Thread):
    def __init__(self, device, ready):
        super().__init__(name="worker")
        self.ready = ready
        self.model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)).to(device)
        self.done = 0

    @torch.inference_mode()
    def run(self):
        while (bucket := self.ready.get()) is not None:
            batch = nn.utils.rnn.pad_sequence(bucket, batch_first=True)
            self.model(batch).mean(dim=1)
            self.done += len(bucket)
            del batch, bucket
            self.ready.task_done()


def main():
    device = sys.argv[1]
    torch.manual_seed(27)
    torch.set_num_threads(1)
    rng = random.Random(27)
    ready = queue.Queue()
    worker = Worker(device, ready)
    worker.start()
    batcher = Batcher(8, ready)
    for number in range(1200):
        adapter = f"private-{number}" if rng.random() < 0.15 else rng.choice(["chat", "code"])
        tokens = torch.randn(rng.randint(32, 95), 48, device=device)  # LEAK
        batcher.add(adapter, tokens)
        if number % 24 == 23:
            ready.join()
    ready.put(None)
    worker.join()
    print(f"{worker.done} served, {len(batcher.buckets)} groups wait")


if __name__ == "__main__":
    main()
