"""Fits a model to time series and reports on the predictions at the end of main.

All predictions are moved to the host and kept until main returns, although the report uses the last twenty only.
"""

import sys

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, horizon=96):
        super().__init__()
        self.rnn = nn.GRU(8, 32, batch_first=True)
        self.head = nn.Linear(32, horizon)

    def forward(self, series):
        _, last = self.rnn(series)
        return self.head(last[0])  # LEAK


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(30)
    torch.set_num_threads(1)
    model = Forecaster().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    predictions = []
    for _ in range(220):
        series = torch.randn(32, 24, 8, device=device).cumsum(dim=1)
        future = series[:, -1, :1].expand(-1, 96)
        predicted = model(series)  # LEAK
        loss = nn.functional.l1_loss(predicted, future)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        predictions.append(predicted.detach().cpu())  # LEAK
    recent = torch.stack(predictions[-20:])
    print("spread of the last predictions:", float(recent.std()))


if __name__ == "__main__":
    main()
