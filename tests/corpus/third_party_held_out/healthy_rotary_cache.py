"""Answers questions about documents. The tables of rotary positions grow by doubling, for the longest text so far."""

import random
import sys

import torch
from torch import nn


class RotaryTables:
    def __init__(self, width, device):
        self.rates = 1.0 / 10000 ** (torch.arange(0, width, 2, device=device) / width)
        self.device = device
        self.cos = self.sin = None
        self.capacity = 0
        self.rebuilt = 0

    def get(self, length):
        if length > self.capacity:
            self.capacity = max(64, self.capacity)
            while self.capacity < length:
                self.capacity *= 2
            angles = torch.outer(torch.arange(self.capacity, device=self.device), self.rates)
            self.cos, self.sin = angles.cos(), angles.sin()
            self.rebuilt += 1
        return self.cos[:length], self.sin[:length]


def rotate(x, tables):
    cos, sin = tables
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], dim=-1)


class Reader(nn.Module):
    def __init__(self, device, width=64):
        super().__init__()
        self.qk = nn.Linear(width, 2 * width, device=device)
        self.out = nn.Linear(width, 2, device=device)
        self.tables = RotaryTables(width, device)

    def forward(self, x):
        query, key = self.qk(x).chunk(2, dim=-1)
        tables = self.tables.get(x.shape[0])
        scores = rotate(query, tables) @ rotate(key, tables).T
        return self.out(torch.softmax(scores / 8, dim=-1) @ x)


def main():
    device = sys.argv[1]
    torch.manual_seed(90)
    torch.set_num_threads(1)
    rng = random.Random(90)
    reader = Reader(device).eval()
    longest = 0
    with torch.no_grad():
        for _ in range(400):
            # A heavy tail: most texts are short, the longest come seldom.
            length = min(600, int(20 * rng.paretovariate(1.2)))
            longest = max(longest, length)
            reader(torch.randn(length, 64, device=device))
    print(f"longest text {longest}, tables rebuilt {reader.tables.rebuilt} times")


if __name__ == "__main__":
    main()
