"""Trains an LSTM on one long series in pieces; its state is carried from piece to piece, detached."""

import sys

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.lstm = nn.LSTM(4, width, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, piece, state):
        hidden, state = self.lstm(piece, state)
        return self.head(hidden), state


def repackage(state):
    return tuple(s.detach() for s in state)


def main():
    device = sys.argv[1]
    torch.manual_seed(11)
    torch.set_num_threads(1)
    series = torch.randn(4, 20 * 150 + 1, 4).cumsum(dim=1).to(device)
    model = Model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state = None
    states_at_checks = []
    for number in range(150):
        start = 20 * number
        inputs, targets = series[:, start : start + 20], series[:, start + 1 : start + 21]
        outputs, state = model(inputs, state)
        state = repackage(state)
        loss = nn.functional.mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if number % 10 == 0:
            states_at_checks = [*states_at_checks[-3:], state]
    print("states kept:", len(states_at_checks))


if __name__ == "__main__":
    main()
