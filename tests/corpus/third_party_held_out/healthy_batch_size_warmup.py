"""Trains with warm-ups: the rate rises for 60 steps, the batch grows from 8 to 96 during 60 % of the run."""

import sys

import torch
from torch import nn


class Schedule:
    def __init__(self, steps, smallest, largest):
        self.steps = steps
        self.smallest = smallest
        self.largest = largest

    def batch_size(self, step):
        done = min(1.0, step / (0.6 * self.steps))
        return int(self.smallest + done * (self.largest - self.smallest))


class Mixer(nn.Module):
    def __init__(self, patches=16, width=24):
        super().__init__()
        self.across = nn.Sequential(nn.Linear(patches, patches), nn.GELU())
        self.within = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.within(x)
        return self.head(x.mean(dim=1))


def main():
    device = sys.argv[1]
    torch.manual_seed(93)
    torch.set_num_threads(1)
    schedule = Schedule(steps=300, smallest=8, largest=96)
    model = Mixer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=60)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=240)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[60])
    seen = 0
    for step in range(schedule.steps):
        size = schedule.batch_size(step)
        patches = torch.randn(size, 16, 24, device=device)
        labels = torch.randint(0, 10, (size,), device=device)
        loss = nn.functional.cross_entropy(model(patches), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        seen += size
    print(f"{seen} samples, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
