"""Five-fold cross-validation: outputs of a fold are collected while it is evaluated, reduced to a number and freed."""

import sys

import torch
from torch import nn


class Folds:
    def __init__(self, samples, folds, device):
        self.inputs = torch.randn(samples, 30, device=device)
        self.targets = torch.randint(0, 3, (samples,), device=device)
        self.size = samples // folds
        self.folds = folds

    def split(self, fold):
        held = slice(fold * self.size, (fold + 1) * self.size)
        train = torch.cat([self.inputs[: held.start], self.inputs[held.stop :]])
        labels = torch.cat([self.targets[: held.start], self.targets[held.stop :]])
        return (train, labels), (self.inputs[held], self.targets[held])


def train(model, data, steps):
    inputs, targets = data
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        chosen = torch.randint(0, len(inputs), (32,), device=inputs.device)
        loss = nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, data):
    outputs = []
    for inputs, targets in zip(data[0].split(10), data[1].split(10), strict=True):
        # Test-time augmentation: sixteen noisy copies of each sample.
        copies = inputs.repeat(16, 1) + 0.05 * torch.randn(16 * len(inputs), 30, device=inputs.device)
        logits = model(copies).reshape(16, len(inputs), -1)
        outputs.append((logits.softmax(dim=-1), targets))
    probabilities = torch.cat([part for part, _targets in outputs], dim=1).mean(dim=0)
    targets = torch.cat([part for _probabilities, part in outputs])
    return (probabilities.argmax(dim=-1) == targets).float().mean().item()


def main():
    device = sys.argv[1]
    torch.manual_seed(68)
    torch.set_num_threads(1)
    folds = Folds(1500, 5, device)
    scores = []
    for _repeat in range(2):
        for fold in range(folds.folds):
            training, held_out = folds.split(fold)
            model = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 3)).to(device)
            train(model, training, steps=40)
            scores.append(evaluate(model, held_out))
    print(f"mean accuracy {sum(scores) / len(scores):.3f} over {len(scores)} folds")


if __name__ == "__main__":
    main()
