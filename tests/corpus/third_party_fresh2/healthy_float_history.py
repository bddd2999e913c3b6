"""Trains a regressor and keeps a long history of Python floats, strings and moving averages; tensors are only in a window of ten losses."""

import collections
import sys
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Entry:
    step: int
    loss: float
    norm: float
    text: str


class History:
    def __init__(self, window):
        self.entries = []
        self.window = collections.deque(maxlen=window)
        self.average = None

    def add(self, step, loss, norm):
        self.window.append(loss.detach())
        self.average = loss.detach() if self.average is None else torch.lerp(self.average, loss.detach(), 0.1)
        smooth = torch.stack(tuple(self.window)).mean().item()
        self.entries.append(Entry(step, loss.item(), norm.item(), f"step {step}: loss {smooth:.4f}"))

    def curve(self):
        return [entry.loss for entry in self.entries]


def main():
    device = sys.argv[1]
    torch.manual_seed(163)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(30, 100), nn.SiLU(), nn.Linear(100, 1)).to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    history = History(window=10)
    for step in range(400):
        inputs = torch.randn(32, 30, device=device)
        loss = (model(inputs).squeeze(1) - inputs.sin().sum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        history.add(step, loss, norm)
    print(history.entries[-1].text, "of", len(history.curve()))


if __name__ == "__main__":
    main()
