"""Trains an attention classifier.

Two leaks: the update of the weights is noted after each step, to see how it shrinks; and from the middle of the run on,
the validation keeps its attention maps for a figure.
"""

import sys

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        attention = torch.softmax(scores / x.shape[-1] ** 0.5, dim=-1)  # LEAK 2
        return self.head((attention @ x).mean(dim=1)), attention


class UpdateMonitor:
    def __init__(self, parameter):
        self.parameter = parameter
        self.before = parameter.detach().clone()
        self.updates = []

    def record(self):
        update = self.parameter.detach() - self.before  # LEAK 1
        self.updates.append(update)  # LEAK 1
        self.before.copy_(self.parameter.detach())


class Validation:
    def __init__(self, device, figures_from):
        self.device = device
        self.figures_from = figures_from
        self.maps = []

    @torch.no_grad()
    def run(self, model, epoch):
        model.eval()
        for _ in range(3):
            logits, attention = model(torch.randn(8, 32, 32, device=self.device))  # LEAK 2
            if epoch >= self.figures_from:
                self.maps.append(attention)  # LEAK 2
            logits.argmax(dim=-1)
        model.train()


def main():
    device = sys.argv[1]
    torch.manual_seed(49)
    torch.set_num_threads(1)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = UpdateMonitor(model.query.weight)
    validation = Validation(device, figures_from=20)
    for epoch in range(40):
        for _ in range(10):
            inputs = torch.randn(8, 32, 32, device=device)
            logits, _attention = model(inputs)
            loss = nn.functional.cross_entropy(logits, torch.randint(0, 5, (8,), device=device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.record()  # LEAK 1
        validation.run(model, epoch)  # LEAK 2
    print(f"{len(monitor.updates)} updates, {len(validation.maps)} maps")


if __name__ == "__main__":
    main()
