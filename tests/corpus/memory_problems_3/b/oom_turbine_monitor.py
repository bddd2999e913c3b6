"""Streaming condition monitor for a wind farm: one recurrent model follows every turbine minute by minute."""
import argparse
import collections
import time

import torch
from torch import nn


class VibrationModel(nn.Module):
    """Predicts the next reading of each channel; a large error means an unusual state of the gearbox."""

    def __init__(self, channels=24, hidden=384, layers=2):
        super().__init__()
        self.inp = nn.Linear(channels, hidden)
        self.cells = nn.ModuleList(nn.GRUCell(hidden, hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, channels)
        self.hidden = hidden

    def initial_state(self, turbines, device):
        return [torch.zeros(turbines, self.hidden, device=device) for _ in self.cells]

    def forward(self, reading, state):
        x = torch.tanh(self.inp(reading))
        following = []
        for cell, h in zip(self.cells, state):
            x = cell(x, h)
            following.append(x)
        return self.out(x), following


class ReadingSource:
    """Readings of all turbines, one tick after the other, as the gateway delivers them."""

    def __init__(self, turbines, channels, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.shape = (turbines, channels)
        self.phase = torch.rand(turbines, 1, generator=self.generator) * 6.28

    def __iter__(self):
        tick = 0
        while True:
            noise = torch.randn(self.shape, generator=self.generator) * 0.05
            yield tick, torch.sin(self.phase + 0.02 * tick) + noise
            tick += 1


class Monitor:
    def __init__(self, model, turbines, device, window=120):
        self.model = model.eval()
        self.device = device
        self.state = model.initial_state(turbines, device)
        self.expected = None
        self.errors = collections.deque(maxlen=window)
        self.alarms = 0

    def observe(self, reading):
        reading = reading.to(self.device, non_blocking=True)
        if self.expected is not None:
            error = (self.expected - reading).abs().mean()
            self.errors.append(error.item())
        self.expected, self.state = self.model(reading, self.state)

    def threshold(self):
        values = sorted(self.errors)
        return values[int(0.99 * (len(values) - 1))] if values else float("inf")

    def check(self):
        if self.errors and self.errors[-1] > 3 * self.threshold():
            self.alarms += 1
            return True
        return False


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turbines", type=int, default=96)
    parser.add_argument("--ticks", type=int, default=1440)
    parser.add_argument("--report-every", type=int, default=60)
    return parser.parse_args([])


def main():
    args = parse_args()
    device = torch.device("cuda")
    model = VibrationModel().to(device)
    monitor = Monitor(model, args.turbines, device)
    started = time.time()
    for tick, reading in ReadingSource(args.turbines, 24, seed=3):
        if tick >= args.ticks:
            break
        monitor.observe(reading)
        monitor.check()
        if tick % args.report_every == 0:
            print(f"{tick:5d} min  error {sum(monitor.errors) / max(1, len(monitor.errors)):.4f}  "
                  f"alarms {monitor.alarms}  {time.time() - started:.1f} s", flush=True)
    print("day finished, alarms:", monitor.alarms)


if __name__ == "__main__":
    main()
