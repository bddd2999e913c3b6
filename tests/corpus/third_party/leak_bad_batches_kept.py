"""Trains on data in which every eighth batch is marked as broken; such batches are skipped and listed at the end.

The list keeps the exceptions, and their tracebacks keep the frames with the batch and its features.
"""

import sys

import torch
from torch import nn


class BrokenBatch(ValueError):
    pass


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(128, 128)
        self.second = nn.Linear(128, 5)

    def forward(self, x, healthy):
        features = torch.tanh(self.first(x))  # LEAK
        if not healthy:
            raise BrokenBatch("the source of this batch is marked as broken")
        return self.second(features)


def load_batch(index, device):
    x = torch.randn(64, 128, device=device)  # LEAK
    return x, torch.randint(0, 5, (64,), device=device), index % 8 != 7


def train_one(model, optimizer, index, device):
    x, labels, healthy = load_batch(index, device)
    loss = nn.functional.cross_entropy(model(x, healthy), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    device = sys.argv[1]
    torch.manual_seed(12)
    torch.set_num_threads(1)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    skipped = []
    for index in range(480):
        try:
            train_one(model, optimizer, index, device)
        except BrokenBatch as error:
            skipped.append(error)  # LEAK
    print(f"skipped {len(skipped)} batches, first: {skipped[0]}")


if __name__ == "__main__":
    main()
