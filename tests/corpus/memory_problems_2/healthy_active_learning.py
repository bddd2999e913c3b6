"""Healthy: active learning; the labelled set on the GPU grows in each round up to the budget of labels.

Why it may look like a leak: in each round more samples are kept on the GPU, by design.
Why it is none: the budget is fixed (Config.budget samples, reached after eight of twelve rounds); then only the same
set is trained on. The model and its optimizer are replaced in each round, and the old ones are freed.
"""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    pool: int = 6000
    initial: int = 256
    per_round: int = 256
    budget: int = 2048
    rounds: int = 12
    steps_per_round: int = 20
    batch_size: int = 64
    bands: int = 32
    length: int = 256
    classes: int = 8


class SpectrogramNet(nn.Module):
    def __init__(self, bands, classes, width=96):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(bands, width, 7, stride=2, padding=3), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(2 * width, classes))

    def forward(self, x):
        return self.head(self.features(x).mean(dim=2))


class LabelledSet:
    """Samples with labels, on the device; never more than the budget."""

    def __init__(self, budget, device):
        self.budget = budget
        self.device = device
        self.parts = []

    def __len__(self):
        return sum(len(labels) for _, labels in self.parts)

    @property
    def full(self):
        return len(self) >= self.budget

    def add(self, samples, labels):
        room = self.budget - len(self)
        self.parts.append((samples[:room].to(self.device), labels[:room].to(self.device)))

    def batch(self, count):
        part_samples, part_labels = self.parts[int(torch.randint(len(self.parts), ()))]
        chosen = torch.randint(len(part_labels), (count,)).to(self.device)
        return part_samples[chosen], part_labels[chosen]


class Oracle:
    def __init__(self, config):
        self.config = config

    def annotate(self, count):
        samples = torch.randn(count, self.config.bands, self.config.length)
        return samples, torch.randint(0, self.config.classes, (count,))


class ActiveLearner:
    def __init__(self, config, device):
        self.config = config
        self.device = device
        self.oracle = Oracle(config)
        self.labelled = LabelledSet(config.budget, device)
        self.labelled.add(*self.oracle.annotate(config.initial))
        self.model = None

    def fit_round(self):
        self.model = SpectrogramNet(self.config.bands, self.config.classes).to(self.device)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        for _ in range(self.config.steps_per_round):
            samples, labels = self.labelled.batch(self.config.batch_size)
            loss = nn.functional.cross_entropy(self.model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    @torch.inference_mode()
    def uncertainty(self, batches=4):
        self.model.eval()
        entropies = []
        for _ in range(batches):
            samples, _ = self.oracle.annotate(self.config.batch_size)
            probabilities = self.model(samples.to(self.device)).softmax(dim=1)
            entropies.append(-(probabilities * (probabilities + 1e-9).log()).sum(dim=1).mean().item())
        return sum(entropies) / batches

    def run(self):
        for number in range(self.config.rounds):
            loss = self.fit_round()
            entropy = self.uncertainty()
            print(f"round {number}: {len(self.labelled)} labels, loss {loss:.4f}, entropy {entropy:.3f}, "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
            if not self.labelled.full:
                self.labelled.add(*self.oracle.annotate(self.config.per_round))


def main():
    torch.manual_seed(0)
    ActiveLearner(Config(), torch.device("cuda")).run()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
