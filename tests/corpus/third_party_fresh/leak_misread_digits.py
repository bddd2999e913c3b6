"""Trains a reader of small digits; every 25 steps an evaluation that collects the worst mistakes for a report.

The report shows the mistakes of the last evaluation; the evaluator keeps those of all. Training itself keeps nothing.
"""

import sys

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classify = nn.Linear(16 * 16, classes)

    def forward(self, x):
        return self.classify(self.features(x).flatten(1))


class Evaluator:
    def __init__(self, batches):
        self.batches = batches
        self.mistakes = []

    @torch.no_grad()
    def run(self, model, step):
        model.eval()
        right = total = 0
        for images, labels in self.batches:
            logits = model(images)
            losses = nn.functional.cross_entropy(logits, labels, reduction="none")
            right += (logits.argmax(dim=1) == labels).sum().item()
            total += len(labels)
            worst = losses.topk(8).indices
            self.mistakes.append({"step": step, "images": images[worst], "logits": logits[worst]})  # LEAK
        model.train()
        return right / total

    def report(self, step):
        shown = [m for m in self.mistakes if m["step"] == step]
        return sum(len(m["images"]) for m in shown)


def digits(prototypes, count, noise):
    labels = torch.randint(0, 10, (count,), device=prototypes.device)
    return prototypes[labels] + noise * torch.randn(count, 1, 16, 16, device=prototypes.device), labels


def main():
    device = sys.argv[1]
    torch.manual_seed(8)
    torch.set_num_threads(1)
    prototypes = torch.rand(10, 1, 16, 16, device=device).round()
    evaluator = Evaluator([digits(prototypes, 64, 1.0) for _ in range(10)])
    model = Reader().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    for step in range(1, 501):
        images, labels = digits(prototypes, 32, 0.9)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            accuracy = evaluator.run(model, step)  # LEAK
            print(f"{step}: {accuracy:.3f}, {evaluator.report(step)} mistakes shown")


if __name__ == "__main__":
    main()
