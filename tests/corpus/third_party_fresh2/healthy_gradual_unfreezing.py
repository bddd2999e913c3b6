"""Fine-tunes a text model that thaws one more block every thirty steps, so gradients and Adam's state appear bit by bit."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, depth=8, width=80):
        super().__init__()
        self.words = nn.Embedding(400, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def thaw(model, stage):
    if stage < len(model.blocks):
        model.blocks[-1 - stage].requires_grad_(True)
        return True
    return False


def main():
    torch.manual_seed(127)
    torch.set_num_threads(1)
    device = sys.argv[1]
    model = Model().to(device)
    model.words.requires_grad_(False)
    model.blocks.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    stage = 0
    for step in range(330):
        if step % 30 == 29:
            stage += thaw(model, stage)
        tokens = torch.randint(0, 400, (8, 12), device=device)
        loss = F.cross_entropy(model(tokens), torch.randint(0, 3, (8,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{stage} blocks thawed, {len(optimizer.state)} parameters have optimizer state")


if __name__ == "__main__":
    main()
