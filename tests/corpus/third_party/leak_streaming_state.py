"""A streaming keyword spotter: audio frames go through a recurrent cell whose state lives as long as the stream.

Inference runs with gradients enabled, so the state drags along the graph of all frames so far.
"""

import sys

import torch
from torch import nn


class Spotter(nn.Module):
    def __init__(self, features=40, width=96, keywords=6):
        super().__init__()
        self.cell = nn.GRUCell(features, width)
        self.head = nn.Linear(width, keywords)

    def forward(self, frame, state):
        state = self.cell(frame, state)  # LEAK
        return self.head(state), state


def microphone(frames, device):
    for _ in range(frames):
        yield torch.randn(1, 40).to(device)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(27)
    torch.set_num_threads(1)
    spotter = Spotter().to(device)
    spotter.eval()
    state = torch.zeros(1, 96, device=device)
    heard = 0
    for frame in microphone(2000, device):
        scores, state = spotter(frame, state)  # LEAK
        probabilities = torch.softmax(scores, dim=-1).tolist()[0]
        heard += len(probabilities)
    print("scores computed:", heard)


if __name__ == "__main__":
    main()
