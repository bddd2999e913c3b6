"""Runs a model with static buffers, one set for each padded shape of the input, as a captured CUDA graph needs them.

There are 6 x 8 padded shapes. Large ones are rare, so the last sets are made late.
"""

import random
import sys

import torch
from torch import nn

BATCHES = (1, 2, 4, 8, 12, 16)
LENGTHS = (16, 32, 48, 64, 80, 96, 112, 128)


class Workspace:
    def __init__(self, batch, length, width, device):
        self.inputs = torch.zeros(batch, length, width, device=device)
        self.hidden = torch.empty(batch, length, 2 * width, device=device)
        self.outputs = torch.empty(batch, length, width, device=device)


class StaticRunner:
    def __init__(self, device, width=16):
        self.device = device
        self.width = width
        self.up = nn.Linear(width, 2 * width).to(device)
        self.down = nn.Linear(2 * width, width).to(device)
        self.workspaces = {}

    def workspace(self, batch, length):
        shape = next(b for b in BATCHES if b >= batch), next(n for n in LENGTHS if n >= length)
        if shape not in self.workspaces:
            self.workspaces[shape] = Workspace(*shape, self.width, self.device)
        return self.workspaces[shape]

    @torch.inference_mode()
    def run(self, x):
        batch, length, _width = x.shape
        space = self.workspace(batch, length)
        space.inputs.zero_()
        space.inputs[:batch, :length] = x
        torch.matmul(space.inputs, self.up.weight.T, out=space.hidden)
        space.hidden.relu_()
        torch.matmul(space.hidden, self.down.weight.T, out=space.outputs)
        return space.outputs[:batch, :length].clone()


def main():
    torch.manual_seed(89)
    torch.set_num_threads(1)
    rng = random.Random(89)
    runner = StaticRunner(sys.argv[1])
    for _ in range(2500):
        batch = min(16, 1 + int(rng.expovariate(0.25)))
        length = min(128, 1 + int(rng.expovariate(0.03)))
        runner.run(torch.randn(batch, length, 16, device=sys.argv[1]))
    print(f"{len(runner.workspaces)} of {len(BATCHES) * len(LENGTHS)} workspaces")


if __name__ == "__main__":
    main()
