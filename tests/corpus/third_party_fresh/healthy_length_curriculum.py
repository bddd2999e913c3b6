"""Trains a copying transformer; the curriculum makes the sequences longer until the last step. Nothing is kept of a step."""

import sys

import torch
from torch import nn


class Copier(nn.Module):
    def __init__(self, symbols=20, width=32, longest=256):
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.place = nn.Parameter(torch.randn(longest, width) / 10)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.out = nn.Linear(width, symbols)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed(tokens) + self.place[:length]
        hidden = self.norms[0](x)
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = x + self.attention(hidden, hidden, hidden, attn_mask=mask, need_weights=False)[0]
        x = x + self.wide(self.norms[1](x))
        return self.out(x)


class LengthCurriculum:
    def __init__(self, shortest, longest, steps):
        self.shortest, self.longest, self.steps = shortest, longest, steps

    def length(self, step):
        fraction = step / (self.steps - 1)
        return int(self.shortest + fraction * (self.longest - self.shortest)) // 4 * 4


def repeated(batch, length, device):
    half = torch.randint(2, 20, (batch, length // 2), device=device)
    tokens = torch.cat([half, half], dim=1)
    tokens[:, length // 2] = 1
    return tokens


def main():
    device = sys.argv[1]
    torch.manual_seed(31)
    torch.set_num_threads(1)
    model = Copier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    steps = 240
    curriculum = LengthCurriculum(8, 112, steps)
    for step in range(steps):
        tokens = repeated(12, curriculum.length(step), device)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 60 == 59:
            print(f"length {tokens.shape[1]}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
