"""Active learning: in each of twelve rounds the model's pick of the pool is labelled and joins the training set, until the budget is spent; then it trains on."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


class Pool:
    def __init__(self, size, device):
        self.unlabelled = torch.randn(size, 128, device=device)
        self.inputs = torch.empty(0, 128, device=device)
        self.labels = torch.empty(0, dtype=torch.long, device=device)

    def label(self, scores, count):
        chosen = scores.topk(count).indices
        inputs = self.unlabelled[chosen]
        self.inputs = torch.cat([self.inputs, inputs])
        self.labels = torch.cat([self.labels, (inputs[:, 0] > 0).long()])

    def batches(self, size, count):
        for _ in range(count):
            index = torch.randint(0, len(self.inputs), (size,), device=self.inputs.device)
            yield self.inputs[index], self.labels[index]


@torch.no_grad()
def uncertainty(model, inputs):
    parts = []
    for part in inputs.split(200):
        probabilities = model(part).softmax(dim=1)
        parts.append(-(probabilities * (probabilities + 1e-6).log()).sum(dim=1))
    return torch.cat(parts)


def fit(model, optimizer, batches):
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def main():
    device = sys.argv[1]
    torch.manual_seed(191)
    torch.set_num_threads(1)
    pool = Pool(2000, device)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(12):
        pool.label(uncertainty(model, pool.unlabelled), 60)
        fit(model, optimizer, pool.batches(32, 25))
    fit(model, optimizer, pool.batches(32, 150))
    print(f"{len(pool.inputs)} labelled")


if __name__ == "__main__":
    main()
