"""Follows a target with a learned filter: the belief after a measurement is the input of the next step.

Nobody turned gradients off, and the belief is never detached: the graph of all steps so far stays.
"""

import sys

import torch
from torch import nn


class LearnedFilter(nn.Module):
    def __init__(self, state=64, measurement=12):
        super().__init__()
        self.motion = nn.Linear(state, state)
        self.sense = nn.Linear(measurement, state)
        self.gain = nn.Linear(2 * state, state)
        self.read_out = nn.Linear(state, 3)

    def forward(self, belief, measurement):
        predicted = torch.tanh(self.motion(belief))  # LEAK
        observed = torch.relu(self.sense(measurement))  # LEAK
        gain = torch.sigmoid(self.gain(torch.cat([predicted, observed], dim=-1)))  # LEAK
        return predicted + gain * (observed - predicted)  # LEAK


class Radar:
    def __init__(self, targets, device):
        self.targets = targets
        self.device = device

    def sweep(self):
        return torch.randn(self.targets, 12, device=self.device)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(31)
    torch.set_num_threads(1)
    model = LearnedFilter().to(device).eval()
    radar = Radar(16, device)
    belief = torch.zeros(16, 64, device=device)
    positions = None
    for _ in range(400):
        measurement = radar.sweep()
        belief = model(belief, measurement)  # LEAK
        positions = model.read_out(belief).detach()
    print("last positions:", tuple(positions.shape))


if __name__ == "__main__":
    main()
