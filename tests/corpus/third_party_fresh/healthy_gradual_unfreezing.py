"""Fine-tunes a deep encoder from the top down: every 25 steps one more block learns, and only then gets its moments in Adam."""

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x):
        return x + self.wide(self.norm(x))


class Encoder(nn.Module):
    def __init__(self, depth=14, width=64, classes=5):
        super().__init__()
        self.enter = nn.Linear(20, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Unfreezer:
    def __init__(self, model, every):
        self.frozen = [model.enter, *model.blocks]
        self.every = every
        for module in self.frozen:
            module.requires_grad_(False)

    def step(self, step):
        if step % self.every == 0 and self.frozen:
            self.frozen.pop().requires_grad_(True)


def main():
    device = sys.argv[1]
    torch.manual_seed(32)
    torch.set_num_threads(1)
    model = Encoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    unfreezer = Unfreezer(model, every=25)
    centers = torch.randn(5, 20, device=device)
    right = seen = 0
    for step in range(1, 401):
        unfreezer.step(step)
        labels = torch.randint(0, 5, (40,), device=device)
        x = centers[labels] + 0.8 * torch.randn(40, 20, device=device)
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        right += (logits.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    print(f"accuracy {right / seen:.3f}, {len(optimizer.state)} parameters have moments")


if __name__ == "__main__":
    main()
