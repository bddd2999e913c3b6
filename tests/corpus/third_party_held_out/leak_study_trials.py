"""A search for hyperparameters. A trial remembers the weights of its best step, to warm-start the next one.

The study needs the weights of the best trial only, but keeps those of all trials.
"""

import copy
import math
import random
import sys

import torch
from torch import nn


class Trial:
    def __init__(self, number, parameters):
        self.number = number
        self.parameters = parameters
        self.value = math.inf
        self.state = None

    def report(self, value, model):
        if value < self.value:
            self.value = value
            self.state = copy.deepcopy(model.state_dict())  # LEAK


class Study:
    def __init__(self, rng):
        self.rng = rng
        self.trials = []

    def ask(self):
        parameters = {"lr": 10 ** self.rng.uniform(-4, -1), "momentum": self.rng.choice([0.0, 0.9])}
        trial = Trial(len(self.trials), parameters)
        self.trials.append(trial)  # LEAK
        return trial

    def best(self):
        return min(self.trials, key=lambda trial: trial.value, default=None)


def objective(trial, device, rng):
    model = nn.Sequential(nn.Linear(24, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), **trial.parameters)
    for step in range(8):
        inputs = torch.randn(32, 24, device=device)
        loss = (model(inputs).squeeze(1) - inputs.sum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 2:
            # A stand-in for the validation loss.
            trial.report(rng.random() + 1 / (1 + step), model)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(44)
    torch.set_num_threads(1)
    rng = random.Random(44)
    study = Study(rng)
    for _ in range(90):
        objective(study.ask(), device, rng)  # LEAK
    print(f"best of {len(study.trials)} trials: {study.best().number}")


if __name__ == "__main__":
    main()
