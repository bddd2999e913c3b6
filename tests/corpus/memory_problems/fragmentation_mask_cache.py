"""Trains a tagger on sentences of variable length; the attention biases are cached per length.

True cause: with every new length the biases (heads x n x n) are allocated in the middle of the forward pass, inside a
block that an earlier batch left, and stay there for ever (lru_cache); the segments of earlier lengths are thus pinned,
and the longer batches that follow find no piece large enough and take new segments.
The line: `bias = -slopes * distance` in `alibi_bias`, which is kept by `@functools.lru_cache`.
Cure: build the bias of the greatest length once before training and slice it, or round lengths up to few buckets.
"""

import functools
import random

import torch
import torch.nn.functional as F
from torch import nn

HEADS = 8


@functools.lru_cache(maxsize=None)  # CAUSE
def alibi_bias(length, device):
    position = torch.arange(length, device=device)
    distance = (position[None, :] - position[:, None]).abs()
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(HEADS)], device=device)[:, None, None]
    bias = -slopes * distance  # CAUSE
    return bias


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // HEADS) ** -0.5 + alibi_bias(n, x.device)
        y = scores.softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Tagger(nn.Module):
    def __init__(self, vocab=12000, dim=256, layers=2, tags=17):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.attention = nn.ModuleList(Attention(dim) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.tag = nn.Linear(dim, tags)

    def forward(self, tokens):
        x = self.embed(tokens)
        for attention, mlp in zip(self.attention, self.mlp):
            x = x + attention(x)
            x = x + mlp(x)
        return self.tag(x)


def main():
    torch.manual_seed(11)
    rng = random.Random(11)
    device = torch.device("cuda")
    model = Tagger().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for step in range(150):
        # sentences are sorted by length, as usual for an epoch with little padding
        length = 200 + 5 * step + rng.randrange(5)
        tokens = torch.randint(0, 12000, (3, length)).to(device)
        tags = torch.randint(0, 17, (3, length)).to(device)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: length {length}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
