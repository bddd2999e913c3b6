"""Threads serve batches of mixed size with workspaces from a pool; a workspace that is too small is replaced, so the pool grows to the largest batch."""

import contextlib
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch


class Pool:
    def __init__(self, width, device):
        self.width = width
        self.device = device
        self.free = []
        self.lock = threading.Lock()
        self.made = 0

    @contextlib.contextmanager
    def borrow(self, rows):
        with self.lock:
            workspace = self.free.pop() if self.free else None
        if workspace is None or len(workspace) < rows:
            workspace = torch.empty(rows, self.width, device=self.device)
            self.made += 1
        try:
            yield workspace[:rows]
        finally:
            with self.lock:
                self.free.append(workspace)


def handle(pool, weights, rows):
    with pool.borrow(rows) as hidden:
        inputs = torch.randn(rows, weights[0].shape[0], device=pool.device)
        torch.mm(inputs, weights[0], out=hidden)
        hidden.relu_()
        return (hidden @ weights[1]).shape[0]


def main():
    device = sys.argv[1]
    torch.manual_seed(197)
    torch.set_num_threads(1)
    rng = random.Random(197)
    pool = Pool(256, device)
    weights = torch.randn(48, 256, device=device), torch.randn(256, 10, device=device)
    served = 0
    with ThreadPoolExecutor(4) as executor:
        for burst in range(400):
            # The bursts become larger over the day; a batch has at most 128 rows.
            sizes = [min(128, 4 + int(rng.paretovariate(1.2) * (2 + burst / 50))) for _ in range(12)]
            served += sum(executor.map(lambda rows: handle(pool, weights, rows), sizes))
    print(f"{served} rows served, {len(pool.free)} workspaces at the end")


if __name__ == "__main__":
    main()
