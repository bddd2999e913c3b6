"""Boosting: ten small networks are trained one after the other on what the earlier ones leave over; all are kept and then used for predictions."""

import sys

import torch
from torch import nn


class Boosted:
    def __init__(self, rate, device):
        self.rate = rate
        self.device = device
        self.members = []

    @torch.no_grad()
    def predict(self, inputs):
        total = torch.zeros(len(inputs), 1, device=self.device)
        for member in self.members:
            total += self.rate * member(inputs)
        return total

    def add(self, inputs, targets, steps):
        residual = targets - self.predict(inputs)
        member = nn.Sequential(nn.Linear(inputs.shape[1], 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 1))
        member.to(self.device)
        optimizer = torch.optim.Adam(member.parameters(), lr=1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            (member(inputs) - residual).square().mean().backward()
            optimizer.step()
        member.requires_grad_(False)
        for parameter in member.parameters():
            parameter.grad = None
        self.members.append(member)


def main():
    device = sys.argv[1]
    torch.manual_seed(181)
    torch.set_num_threads(1)
    inputs = torch.randn(200, 20, device=device)
    targets = inputs[:, :3].sin().sum(dim=1, keepdim=True)
    boosted = Boosted(0.4, device)
    for _ in range(10):
        boosted.add(inputs, targets, steps=30)
    rows = 0
    for _ in range(150):
        rows += len(boosted.predict(torch.randn(40, 20, device=device)))
    print(f"{len(boosted.members)} members predicted {rows} rows")


if __name__ == "__main__":
    main()
