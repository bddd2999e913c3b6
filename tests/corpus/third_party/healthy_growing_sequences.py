"""Trains a small attention model on sequences that get longer and longer: steps need more, none keeps it."""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        attended, _ = self.attention(x, x, x)
        x = self.norm(x + attended)
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    def __init__(self, vocabulary=100, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.block = Block(width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.out(self.block(self.embed(tokens)))


def main():
    device = sys.argv[1]
    torch.manual_seed(2)
    torch.set_num_threads(1)
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(160):
        length = 8 + step // 2
        tokens = torch.randint(0, 100, (8, length + 1), device=device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("longest sequence:", length)


if __name__ == "__main__":
    main()
