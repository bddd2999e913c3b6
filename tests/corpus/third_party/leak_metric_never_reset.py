"""Trains a binary classifier for three epochs and computes a ranking metric at the end of each.

The metric stores all scores and has a reset method, but the training loop never calls it.
"""

import sys

import torch
from torch import nn


class RankingMetric:
    def __init__(self):
        self.reset()

    def reset(self):
        self.batches = []

    def update(self, logits, labels):
        self.batches.append(torch.stack([torch.sigmoid(logits.detach()), labels]))  # LEAK

    def compute(self):
        scores, labels = torch.cat(self.batches[-50:], dim=1)
        order = scores.argsort()
        ranks = torch.empty_like(scores)
        ranks[order] = torch.arange(len(scores), device=scores.device, dtype=scores.dtype)
        return (ranks * labels).sum() / labels.sum()


def batches(device, count, generator):
    for _ in range(count):
        x = torch.randn(2048, 16, generator=generator).to(device)
        yield x, (x[:, 0] > 0).float()


def main():
    device = torch.device(sys.argv[1])
    generator = torch.Generator().manual_seed(5)
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    metric = RankingMetric()
    for epoch in range(3):
        for x, y in batches(device, 100, generator):
            logits = model(x).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            metric.update(logits, y)  # LEAK
        print(f"epoch {epoch}: mean rank of positives {float(metric.compute()):.1f}")


if __name__ == "__main__":
    main()
