"""A classifier's training logs messages lazily as closures, which are formatted only if a warning makes the log flush; no warning comes."""

import sys

import torch
import torch.nn.functional as F
from torch import nn


def make_log():
    pending = []
    written = []

    def debug(message):
        pending.append(message)  # LEAK

    def warn(text):
        written.extend(message() for message in pending)
        written.append(text)
        pending.clear()

    return debug, warn, written


def train(device, steps):
    model = nn.Sequential(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    debug, warn, written = make_log()

    def step(number):
        inputs = torch.randn(48, 40, device=device)
        targets = torch.randint(0, 10, (48,), device=device)
        hidden = model[:4](inputs)
        loss = F.cross_entropy(model[4](hidden), targets)
        optimizer.zero_grad()
        loss.backward()
        features = hidden.detach().abs()  # LEAK
        debug(lambda: f"step {number}: {(features > 0).float().mean().item():.3f} of the units active")  # LEAK
        optimizer.step()

    for number in range(steps):
        step(number)
        if number >= 10_000:
            warn("training takes too long")
    return len(written)


def main():
    torch.manual_seed(11)
    torch.set_num_threads(1)
    lines = train(sys.argv[1], 420)
    print(f"trained, {lines} log lines")


if __name__ == "__main__":
    main()
