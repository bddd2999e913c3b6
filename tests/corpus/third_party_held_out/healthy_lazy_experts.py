"""A mixture of 40 experts, routed by topic. Adam makes the moments of an expert when it is chosen for the first time.

Topics are Zipf-like: rare experts get their moments late in the run. Then nothing is left to make.
"""

import random
import sys

import torch
from torch import nn


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Mixture(nn.Module):
    def __init__(self, experts, width=48):
        super().__init__()
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))
        self.head = nn.Linear(width, 10)

    def forward(self, x, chosen):
        mixed = sum(self.experts[number](x) for number in chosen)
        return self.head(x + mixed / len(chosen))


def main():
    device = sys.argv[1]
    torch.manual_seed(74)
    torch.set_num_threads(1)
    rng = random.Random(74)
    model = Mixture(40).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    weights = [1 / (1 + rank) ** 1.1 for rank in range(40)]
    used = set()
    for _step in range(500):
        chosen = rng.choices(range(40), weights, k=2)
        used.update(chosen)
        x = torch.randn(16, 48, device=device)
        loss = nn.functional.cross_entropy(model(x, chosen), torch.randint(0, 10, (16,), device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(used)} of 40 experts used, {len(optimizer.state)} parameters with moments")


if __name__ == "__main__":
    main()
