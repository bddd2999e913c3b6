"""Trains on batches padded to their longest sentence; causal masks are remembered per length, and lengths are few."""

import random
import sys

import torch
from torch import nn

_masks = {}


def causal_mask(length, device):
    if length not in _masks:
        _masks[length] = torch.full((length, length), float("-inf"), device=device).triu(1)
    return _masks[length]


class Attention(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + causal_mask(x.shape[1], x.device)
        return self.out(scores.softmax(dim=-1) @ v)


def main():
    device = sys.argv[1]
    torch.manual_seed(10)
    torch.set_num_threads(1)
    rng = random.Random(10)
    model = Attention().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(320):
        length = 8 * min(20, max(2, int(rng.gauss(10, 5))))
        x = torch.randn(4, length, 48, device=device)
        loss = nn.functional.mse_loss(model(x), x.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(_masks), "lengths met")


if __name__ == "__main__":
    main()
