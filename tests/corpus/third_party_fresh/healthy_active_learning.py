"""Active learning: in each of 20 rounds 30 of 700 samples get their label and move to the device; the pool bounds what is there."""

import sys

import torch
from torch import nn


class LabeledSet:
    def __init__(self, device):
        self.device = device
        self.samples = []
        self.labels = []

    def add(self, samples, labels):
        for sample, label in zip(samples, labels):
            self.samples.append(sample.to(self.device, torch.float32, copy=True))
            self.labels.append(int(label))

    def batch(self, rows):
        labels = torch.tensor([self.labels[row] for row in rows], device=self.device)
        return torch.stack([self.samples[row] for row in rows]), labels


class Pool:
    def __init__(self, size, generator):
        self.centers = torch.randn(6, 400, generator=generator)
        self.labels = torch.randint(0, 6, (size,), generator=generator)
        noise = torch.randn(size, 400, generator=generator)
        self.samples = (self.centers[self.labels] / 3 + noise).half()
        self.open = list(range(size))

    def ask(self, rows):
        self.open = sorted(set(self.open) - set(rows))
        return self.samples[rows], self.labels[rows]


@torch.no_grad()
def uncertain(model, pool, count, device):
    scores = []
    for rows in torch.tensor(pool.open).split(128):
        probabilities = model(pool.samples[rows].to(device, torch.float32)).softmax(dim=1)
        scores.append(probabilities.max(dim=1).values)
    order = torch.cat(scores).argsort()[:count].tolist()
    return [pool.open[i] for i in order]


def main():
    device = sys.argv[1]
    torch.manual_seed(48)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(48)
    pool = Pool(700, generator)
    labeled = LabeledSet(device)
    model = nn.Sequential(nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 6)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    labeled.add(*pool.ask(list(range(30))))
    for round_ in range(20):
        for _ in range(25):
            rows = torch.randint(0, len(labeled.samples), (32,), generator=generator).tolist()
            x, y = labeled.batch(rows)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        labeled.add(*pool.ask(uncertain(model, pool, 30, device)))
    print(f"{len(labeled.samples)} labeled, {len(pool.open)} left, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
