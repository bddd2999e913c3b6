"""A queue between two stages that backs up in bursts and is worked off in the lulls, over and over."""

import random
import sys
from collections import deque

import torch
from torch import nn


class Source:
    """Sends about two items a tick on average, but in bursts."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def items(self, tick):
        burst = tick % 90 < 25
        return self.rng.randint(4, 7) if burst else self.rng.randint(0, 1)


class Stage:
    def __init__(self, device):
        self.device = device
        self.backlog = deque()
        self.model = nn.Linear(32_768, 64).to(device)

    def receive(self, count):
        for _ in range(count):
            self.backlog.append(torch.randn(32_768, device=self.device))

    @torch.no_grad()
    def work(self, most=3):
        for _ in range(min(most, len(self.backlog))):
            self.model(self.backlog.popleft()).relu().sum()


def main():
    torch.manual_seed(3)
    torch.set_num_threads(1)
    source, stage = Source(3), Stage(sys.argv[1])
    longest = 0
    for tick in range(540):
        stage.receive(source.items(tick))
        longest = max(longest, len(stage.backlog))
        stage.work()
    print("longest backlog:", longest, "left:", len(stage.backlog))


if __name__ == "__main__":
    main()
