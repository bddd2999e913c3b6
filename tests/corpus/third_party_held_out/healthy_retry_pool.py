"""Transcodes clips on a thread pool. Failed clips are tried again, up to three times, then their error text is kept.

The results are collected in order by the main thread, with at most twelve clips in flight.
"""

import collections
import concurrent.futures
import random
import sys

import torch
from torch import nn


class Broken(RuntimeError):
    def __init__(self, message, clip):
        super().__init__(message)
        self.clip = clip


class Transcoder:
    def __init__(self, device):
        self.device = device
        self.network = nn.Conv1d(1, 4, 9, stride=4).to(device)

    @torch.inference_mode()
    def work(self, samples, fails):
        clip = torch.randn(1, 1, samples, device=self.device)
        coded = torch.tanh(self.network(clip))
        if fails:
            raise Broken(f"broken after {samples} samples", coded)
        return coded.mean(dim=-1)


class Client:
    def __init__(self, pool, transcoder, rng):
        self.pool = pool
        self.transcoder = transcoder
        self.rng = rng
        self.in_flight = collections.deque()
        self.errors = []
        self.done = 0

    def submit(self, samples, attempt=1):
        fails = self.rng.random() < 0.15
        self.in_flight.append((self.pool.submit(self.transcoder.work, samples, fails), samples, attempt))

    def collect(self):
        future, samples, attempt = self.in_flight.popleft()
        try:
            future.result()
            self.done += 1
        except Broken as error:
            if attempt < 3:
                self.submit(samples, attempt + 1)
            else:
                self.errors.append(str(error))
        finally:
            # The error knows this frame, and the future the error: without this they would be a cycle.
            del future


def main():
    torch.manual_seed(92)
    torch.set_num_threads(1)
    rng = random.Random(92)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        client = Client(pool, Transcoder(sys.argv[1]), rng)
        for _ in range(450):
            client.submit(rng.randint(2000, 6000))
            if len(client.in_flight) >= 12:
                client.collect()
        while client.in_flight:
            client.collect()
    print(f"{client.done} clips done, {len(client.errors)} given up")


if __name__ == "__main__":
    main()
