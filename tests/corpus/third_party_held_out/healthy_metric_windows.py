"""A trainer with moving windows of metrics on the device: of 50, 100 and 200 steps, filled one after the other."""

import collections
import sys

import torch
from torch import nn


class WindowedMetric:
    def __init__(self, window):
        self.values = collections.deque(maxlen=window)

    def update(self, value):
        self.values.append(value.detach())

    def compute(self):
        return torch.stack(tuple(self.values)).mean(dim=0)


class Metrics:
    def __init__(self):
        self.named = {
            "loss per sample": WindowedMetric(50),
            "mean output": WindowedMetric(100),
            "gradient of the head": WindowedMetric(200),
        }

    def update(self, **values):
        for name, value in values.items():
            self.named[name.replace("_", " ")].update(value)

    def report(self):
        return {name: tuple(metric.compute().shape) for name, metric in self.named.items()}


def main():
    device = sys.argv[1]
    torch.manual_seed(79)
    torch.set_num_threads(1)
    body = nn.Sequential(nn.Linear(60, 64), nn.ReLU()).to(device)
    head = nn.Linear(64, 30).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    metrics = Metrics()
    for step in range(450):
        inputs = torch.randn(128, 60, device=device)
        outputs = head(body(inputs))
        losses = (outputs - inputs[:, :30]).square().mean(dim=1)
        optimizer.zero_grad()
        losses.mean().backward()
        metrics.update(
            loss_per_sample=losses,
            mean_output=outputs.mean(dim=0),
            gradient_of_the_head=head.weight.grad.clone(),
        )
        optimizer.step()
        if step % 50 == 49:
            report = metrics.report()
    print(report)


if __name__ == "__main__":
    main()
