"""Trains an image classifier with a probe that is meant to show whether units die.

The probe's forward hook appends every activation to a list that nobody ever empties.
"""

import sys

import torch
import torch.nn as nn


class ActivationProbe:
    def __init__(self):
        self.seen = {}

    def attach(self, model):
        for name, module in model.named_modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self._make_hook(name))

    def _make_hook(self, name):
        def hook(module, inputs, output):
            self.seen.setdefault(name, []).append(output.detach())  # LEAK

        return hook

    def dead_fraction(self, name):
        return (self.seen[name][-1] == 0).float().mean()


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build().to(device)
    probe = ActivationProbe()
    probe.attach(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for step in range(120):
        images = torch.randn(16, 3, 16, 16, device=device)
        labels = torch.randint(0, 10, (16,), device=device)
        logits = model(images)  # LEAK
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(step, "dead units:", float(probe.dead_fraction("1")))


if __name__ == "__main__":
    main()
