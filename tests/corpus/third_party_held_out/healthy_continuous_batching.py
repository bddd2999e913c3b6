"""An LLM server with continuous batching: load grows for the first half of the run and shrinks in the second.

Keys and values are kept per sequence and freed when it ends, however it ends.
"""

import random
import sys

import torch
from torch import nn


class Sequence:
    def __init__(self, prompt, tokens):
        self.keys = prompt
        self.values = prompt.flip(0)
        self.left = tokens


class Attention(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.width = width
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, sequences):
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        rows = []
        for row, sequence in enumerate(sequences):
            sequence.keys = torch.cat([sequence.keys, key[row : row + 1]])
            sequence.values = torch.cat([sequence.values, value[row : row + 1]])
            weights = torch.softmax(query[row] @ sequence.keys.T / self.width**0.5, dim=-1)
            rows.append(weights @ sequence.values)
        return torch.stack(rows)


class Scheduler:
    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.layer = Attention().to(device)
        self.running = []
        self.finished = 0

    def admit(self, wanted):
        while len(self.running) < wanted:
            prompt = torch.randn(self.rng.randint(16, 64), 64, device=self.device)
            self.running.append(Sequence(prompt, self.rng.randint(5, 40)))

    @torch.inference_mode()
    def step(self):
        self.layer(torch.randn(len(self.running), 64, device=self.device), self.running)
        for sequence in self.running:
            sequence.left -= 1
        before = len(self.running)
        self.running = [sequence for sequence in self.running if sequence.left > 0]
        self.finished += before - len(self.running)


def main():
    torch.manual_seed(71)
    torch.set_num_threads(1)
    scheduler = Scheduler(sys.argv[1], random.Random(71))
    steps = 600
    for step in range(steps):
        rising = min(step, steps - step) / (steps / 2)
        scheduler.admit(wanted=2 + int(10 * rising))
        scheduler.step()
    print(f"{scheduler.finished} sequences, {len(scheduler.running)} still running")


if __name__ == "__main__":
    main()
