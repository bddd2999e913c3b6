"""Trains an encoder against augmented views and follows the centre of its features for a collapse report.

The centre is updated without detach, so every update hangs on the graph of the one before.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

DIM = 512


class CollapseMonitor:
    def __init__(self, device, momentum=0.98):
        self.center = torch.zeros(DIM, device=device)
        self.momentum = momentum

    def update(self, features):
        mean = features.mean(dim=0)
        self.center = F.normalize(self.momentum * self.center + (1 - self.momentum) * mean, dim=0)  # LEAK


def train(device):
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, DIM)).to(device)
    monitor = CollapseMonitor(device)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    for _ in range(500):
        batch = torch.randn(48, 64, device=device)
        first = encoder(batch + 0.1 * torch.randn_like(batch))
        second = encoder(batch + 0.1 * torch.randn_like(batch))
        loss = -F.cosine_similarity(first, second.detach()).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        monitor.update(first)  # LEAK
    return monitor.center.detach()


if __name__ == "__main__":
    torch.manual_seed(11)
    torch.set_num_threads(1)
    center = train(sys.argv[1])
    print("norm of the centre:", float(center.norm()))
