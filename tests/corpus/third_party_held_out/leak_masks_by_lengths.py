"""Trains a sentence encoder. The attention masks of a batch are cached by the lengths of its sentences.

A tuple of eight lengths practically never comes back, so each step adds a mask.
"""

import random
import sys

import torch
from torch import nn


class MaskCache:
    def __init__(self, device):
        self.device = device
        self.masks = {}

    def get(self, lengths):
        key = tuple(lengths)
        if key not in self.masks:
            positions = torch.arange(max(lengths), device=self.device)
            limits = torch.tensor(lengths, device=self.device)
            valid = positions[None, :] < limits[:, None]
            mask = torch.zeros(len(lengths), 1, max(lengths), max(lengths), device=self.device)  # LEAK
            self.masks[key] = mask.masked_fill_(~valid[:, None, None, :], -1e9)  # LEAK
        return self.masks[key]


class Encoder(nn.Module):
    def __init__(self, width=32, heads=2):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(400, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 400)

    def forward(self, tokens, mask):
        batch, length = tokens.shape
        parts = self.qkv(self.embed(tokens)).reshape(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(attended.transpose(1, 2).reshape(batch, length, -1))


def main():
    device = sys.argv[1]
    torch.manual_seed(47)
    torch.set_num_threads(1)
    rng = random.Random(47)
    model, masks = Encoder().to(device), MaskCache(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _step in range(300):
        lengths = [rng.randint(8, 32) for _ in range(8)]
        tokens = torch.randint(0, 400, (8, max(lengths)), device=device)
        logits = model(tokens, masks.get(lengths))  # LEAK
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(masks.masks)} masks")


if __name__ == "__main__":
    main()
