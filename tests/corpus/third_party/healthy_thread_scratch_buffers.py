"""A thread pool of signal handlers, each thread with one scratch buffer as large as its largest signal so far."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch


class Scratch(threading.local):
    def __init__(self):
        self.buffer = None

    def take(self, length, device):
        if self.buffer is None or self.buffer.numel() < length:
            self.buffer = torch.empty(length, device=device)
        return self.buffer[:length]


class Smoother:
    def __init__(self, device):
        self.device = device
        self.scratch = Scratch()
        self.window = torch.hann_window(9, device=device)

    def __call__(self, job):
        seed, length = job
        signal = torch.randn(length, generator=torch.Generator().manual_seed(seed)).to(self.device)
        work = self.scratch.take(length - 8, self.device)
        work.zero_()
        for offset in range(9):
            work.add_(signal[offset : offset + length - 8] * self.window[offset])
        return work.abs().mean().item()


def main():
    device = sys.argv[1]
    rng = random.Random(6)
    jobs = [(seed, min(30_000, 500 + int(rng.expovariate(1 / 6000)))) for seed in range(500)]
    smoother = Smoother(device)
    with ThreadPoolExecutor(max_workers=4) as pool:
        levels = list(pool.map(smoother, jobs))
    print(len(levels), "signals smoothed")


if __name__ == "__main__":
    main()
