"""A trainer that keeps the last four checkpoints and the best one in memory, and rolls back when a step goes wrong."""

import collections
import copy
import random
import sys

import torch
from torch import nn


class Checkpoints:
    def __init__(self, keep):
        self.last = collections.deque(maxlen=keep)
        self.best = None
        self.best_score = float("-inf")

    def save(self, step, score, model, optimizer):
        state = {
            "step": step,
            "model": copy.deepcopy(model.state_dict()),
            "optimizer": copy.deepcopy(optimizer.state_dict()),
        }
        self.last.append(state)
        if score > self.best_score:
            self.best_score = score
            self.best = state

    def roll_back(self, model, optimizer):
        state = self.last[-1]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]


def main():
    device = sys.argv[1]
    torch.manual_seed(67)
    torch.set_num_threads(1)
    rng = random.Random(67)
    model = nn.Sequential(nn.Linear(50, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoints = Checkpoints(keep=4)
    rolled_back = 0
    for step in range(320):
        inputs = torch.randn(24, 50, device=device)
        loss = (model(inputs).squeeze(1) - inputs.norm(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 7:
            checkpoints.save(step, rng.gauss(0.01 * step, 1.0), model, optimizer)
        # A stand-in for a spike of the loss.
        if checkpoints.last and rng.random() < 0.03:
            checkpoints.roll_back(model, optimizer)
            rolled_back += 1
    print(f"best score {checkpoints.best_score:.2f}, rolled back {rolled_back} times")


if __name__ == "__main__":
    main()
