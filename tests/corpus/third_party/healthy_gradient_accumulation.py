"""Trains with gradients accumulated over eight micro-batches, whose losses are kept until the optimizer steps."""

import sys

import torch
from torch import nn

ACCUMULATE = 8


def micro_batches(count, device):
    for _ in range(count):
        x = torch.randn(8, 3, 12, 12, device=device)
        yield x, torch.randint(0, 4, (8,), device=device)


def main(device):
    torch.manual_seed(4)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1200, 4),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    window = []
    history = []
    for index, (x, y) in enumerate(micro_batches(480, device)):
        loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
        loss.backward()
        window.append(loss.detach())
        if (index + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            history.append(torch.stack(window).sum().item())
            window = []
    print(len(history), "updates")


if __name__ == "__main__":
    main(sys.argv[1])
