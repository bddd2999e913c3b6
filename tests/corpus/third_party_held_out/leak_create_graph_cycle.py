"""Estimates how sharp the minimum of many small problems is: a new model for each, and the norm of its gradient.

`backward(create_graph=True)` leaves gradients that know the graph, and the graph knows the weights.
Nobody breaks this circle by setting the gradients to None, and no garbage collector sees it: each model stays.
"""

import sys
import warnings

import torch
from torch import nn


class Problem(nn.Module):
    def __init__(self, inputs, hidden=40):
        super().__init__()
        self.first = nn.Linear(inputs, hidden)  # LEAK
        self.second = nn.Linear(hidden, 1)  # LEAK

    def forward(self, x):
        return self.second(torch.tanh(self.first(x))).squeeze(-1)  # LEAK


def sharpness(model, x, y):
    loss = (model(x) - y).square().mean()  # LEAK
    loss.backward(create_graph=True)  # LEAK
    penalty = sum(parameter.grad.square().sum() for parameter in model.parameters())  # LEAK
    return penalty.detach()


def fit(model, x, y, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    optimizer.zero_grad()


def main():
    device = sys.argv[1]
    torch.manual_seed(52)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Using backward")
    found = torch.zeros((), device=device)
    for _problem in range(200):
        x = torch.randn(16, 50, device=device)  # LEAK
        model = Problem(50).to(device)  # LEAK
        y = x.sin().sum(dim=1)
        fit(model, x, y, steps=2)
        found += sharpness(model, x, y)  # LEAK
    print("mean sharpness over 200 problems:", (found / 200).shape)


if __name__ == "__main__":
    main()
