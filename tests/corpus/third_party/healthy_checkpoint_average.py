"""Trains and averages the last five checkpoints, taken every twenty steps in the second half of the run."""

import copy
import sys
from collections import deque

import torch
from torch import nn


class CheckpointAverager:
    def __init__(self, keep=5):
        self.recent = deque(maxlen=keep)

    def take(self, model):
        self.recent.append(copy.deepcopy(model.state_dict()))

    def average(self):
        result = {}
        for name in self.recent[0]:
            result[name] = torch.stack([state[name].float() for state in self.recent]).mean(dim=0)
        return result


def main():
    device = sys.argv[1]
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(50, 150), nn.ReLU(), nn.Linear(150, 150), nn.ReLU(), nn.Linear(150, 10)).to(device)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    averager = CheckpointAverager()
    total = 500
    for step in range(total):
        x = torch.randn(32, 50, device=device)
        loss = nn.functional.mse_loss(model(x), x[:, :10])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step > total // 2 and step % 20 == 0:
            averager.take(model)
    model.load_state_dict(averager.average())
    print("checkpoints averaged:", len(averager.recent))


if __name__ == "__main__":
    main()
