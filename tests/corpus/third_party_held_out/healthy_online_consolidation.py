"""Continual learning with elastic weight consolidation: one Fisher estimate and one anchor for all tasks."""

import sys

import torch
from torch import nn


class Consolidation:
    def __init__(self, strength, decay):
        self.strength = strength
        self.decay = decay
        self.fisher = None
        self.anchor = None

    def penalty(self, model):
        if self.fisher is None:
            return 0.0
        distance = sum(
            (fisher * (parameter - anchor).square()).sum()
            for fisher, parameter, anchor in zip(self.fisher, model.parameters(), self.anchor, strict=True)
        )
        return 0.5 * self.strength * distance

    def end_of_task(self, model, batches):
        found = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for inputs, targets in batches:
            model.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            for total, parameter in zip(found, model.parameters(), strict=True):
                total += parameter.grad.square() / len(batches)
        model.zero_grad()
        if self.fisher is not None:
            found = [self.decay * old + new for old, new in zip(self.fisher, found, strict=True)]
        self.fisher = found
        self.anchor = [parameter.detach().clone() for parameter in model.parameters()]


def batches_of(task, count, device):
    found = []
    for _ in range(count):
        inputs = torch.randn(20, 36, device=device).roll(task, dims=1)
        found.append((inputs, torch.randint(0, 4, (20,), device=device)))
    return found


def main():
    device = sys.argv[1]
    torch.manual_seed(88)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 4)).to(device)
    consolidation = Consolidation(strength=10.0, decay=0.9)
    for task in range(10):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        batches = batches_of(task, 10, device)
        for _epoch in range(2):
            for inputs, targets in batches:
                loss = nn.functional.cross_entropy(model(inputs), targets) + consolidation.penalty(model)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        consolidation.end_of_task(model, batches)
    print(f"10 tasks, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
