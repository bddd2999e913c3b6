"""Condition monitoring of rotating machinery.

A recurrent model predicts the next spectrum of each vibration sensor of the plant; a large prediction error raises an
alarm. The model runs on the live stream, one frame of all sensors at a time.
"""
import collections
import statistics
import time

import torch
from torch import nn

SENSORS = 1536
BANDS = 64
HIDDEN = 384
FRAMES = 900
ALARM_FACTOR = 6.0


class SpectrumPredictor(nn.Module):
    def __init__(self, bands, hidden):
        super().__init__()
        self.normalise = nn.LayerNorm(bands)
        self.cell1 = nn.GRUCell(bands, hidden)
        self.cell2 = nn.GRUCell(hidden, hidden)
        self.readout = nn.Linear(hidden, bands)

    def forward(self, frame, state):
        h1, h2 = state
        h1 = self.cell1(self.normalise(frame), h1)
        h2 = self.cell2(h1, h2)
        return self.readout(h2), (h1, h2)

    def initial_state(self, n, device):
        return tuple(torch.zeros(n, HIDDEN, device=device) for _ in range(2))


class SensorStream:
    """Frames of all sensors, as the gateway delivers them."""

    def __init__(self, frames):
        self.frames = frames
        self.base = torch.rand(SENSORS, BANDS)

    def __iter__(self):
        for i in range(self.frames):
            yield i, self.base.roll(i % BANDS, dims=1)


class Monitor:
    def __init__(self, model, device):
        self.model = model.to(device).eval()
        self.device = device
        self.state = self.model.initial_state(SENSORS, device)
        self.expected = None
        self.history = collections.deque(maxlen=200)
        self.alarms = []

    def observe(self, index, frame):
        frame = frame.to(self.device)
        if self.expected is not None:
            error = (frame - self.expected).pow(2).mean(dim=1)
            worst = error.max().item()
            if len(self.history) > 50 and worst > ALARM_FACTOR * statistics.fmean(self.history):
                self.alarms.append((index, worst))
            self.history.append(worst)
        self.expected, self.state = self.model(frame, self.state)

    def report(self):
        level = statistics.fmean(self.history) if self.history else 0.0
        return f"{len(self.alarms)} alarms, mean error {level:.4f}"


def main():
    torch.manual_seed(0)
    monitor = Monitor(SpectrumPredictor(BANDS, HIDDEN), torch.device("cuda"))
    started = time.time()
    for index, frame in SensorStream(FRAMES):
        monitor.observe(index, frame)
        if index % 100 == 99:
            print(f"frame {index + 1}: {monitor.report()} ({(index + 1) / (time.time() - started):.0f} frames/s)")


if __name__ == "__main__":
    main()
