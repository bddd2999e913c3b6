"""Gradient accumulation over a growing number of micro-batches, with an exponential moving average of the weights that starts late."""

import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for average, current in zip(self.model.parameters(), model.parameters()):
            average.lerp_(current, 1 - self.decay)
        for average, current in zip(self.model.buffers(), model.buffers()):
            average.copy_(current)


def micro_batches(count, device):
    for _ in range(count):
        yield torch.randn(6, 1, 20, 20, device=device), torch.randint(0, 10, (6,), device=device)


def main():
    device = sys.argv[1]
    torch.manual_seed(179)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(432, 64), nn.ReLU(), nn.Linear(64, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ema = None
    for step in range(60):
        accumulate = 2 + step // 12
        losses = []
        for images, labels in micro_batches(accumulate, device):
            loss = F.cross_entropy(model(images), labels) / accumulate
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        if step == 25:
            ema = EMA(model, 0.95)
        elif ema is not None:
            ema.update(model)
    print(f"last loss {torch.stack(losses).sum().item():.3f}")


if __name__ == "__main__":
    main()
