"""Trains a model in two stages, as pipeline parallelism does: stage one stashes its outputs for its own backward.

A step whose loss overflows is skipped: stage two sends no gradients back, and the outputs stay in the stash.
"""

import random
import sys

import torch
from torch import nn


class Stage:
    def __init__(self, module, device):
        self.module = module.to(device)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)
        self.stash = {}

    def forward(self, key, inputs):
        outputs = self.module(inputs)  # LEAK
        self.stash[key] = outputs  # LEAK
        return outputs.detach().requires_grad_()

    def backward(self, key, gradient):
        self.stash.pop(key).backward(gradient)

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Pipeline:
    def __init__(self, device, micro_batches=4):
        self.device = device
        self.micro_batches = micro_batches
        self.first = Stage(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), device)
        self.last = Stage(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)), device)

    def step(self, number, overflows):
        received = []
        for micro in range(self.micro_batches):
            inputs = torch.randn(8, 64, device=self.device)  # LEAK
            received.append(self.first.forward((number, micro), inputs))  # LEAK
        if overflows:
            return False
        for micro, hidden in enumerate(received):
            self.last.module(hidden).square().mean().backward()
            self.first.backward((number, micro), hidden.grad)
        self.first.update()
        self.last.update()
        return True


def main():
    torch.manual_seed(50)
    torch.set_num_threads(1)
    rng = random.Random(50)
    pipeline = Pipeline(sys.argv[1])
    skipped = 0
    for number in range(500):
        # A stand-in for the overflow check of mixed precision.
        skipped += not pipeline.step(number, overflows=rng.random() < 0.1)  # LEAK
    print(f"{skipped} steps skipped, {len(pipeline.first.stash)} outputs in the stash")


if __name__ == "__main__":
    main()
