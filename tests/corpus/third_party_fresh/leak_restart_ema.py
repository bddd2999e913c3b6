"""Trains a load forecaster with warm restarts; each cycle of the schedule gets a moving average of the weights of its own.

Only the average of the current cycle is ever used, but those of the earlier cycles stay in the list.
"""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Forecaster(nn.Module):
    def __init__(self, features=24, hidden=160, horizon=12):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.LayerNorm(hidden))
        self.mix = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, hidden))
        self.out = nn.Linear(hidden, horizon)

    def forward(self, x):
        h = self.encode(x)
        return self.out(h + self.mix(h))


class CyclicTrainer:
    def __init__(self, model, cycle):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, T_0=cycle)
        self.averages = []
        self.begin_cycle()  # LEAK

    def begin_cycle(self):
        self.averages.append(AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))  # LEAK

    def step(self, x, y):
        loss = nn.functional.smooth_l1_loss(self.model(x), y)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.averages[-1].update_parameters(self.model)
        if self.schedule.T_cur == 0:
            self.begin_cycle()  # LEAK
        return loss.item()

    @torch.no_grad()
    def validate(self, x, y):
        return nn.functional.l1_loss(self.averages[-1](x), y).item()


def batch(generator, rows, mixing, device):
    x = torch.randn(rows, 24, generator=generator)
    y = torch.tanh(x @ mixing) + 0.05 * torch.randn(rows, 12, generator=generator)
    return x.to(device), y.to(device)


def main():
    device = sys.argv[1]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2)
    mixing = torch.randn(24, 12, generator=generator) / 5
    trainer = CyclicTrainer(Forecaster().to(device), cycle=15)  # LEAK
    held_out = batch(generator, 256, mixing, device)
    for step in range(600):
        loss = trainer.step(*batch(generator, 64, mixing, device))  # LEAK
        if step % 100 == 99:
            print(f"{step + 1}: loss {loss:.4f}, validation {trainer.validate(*held_out):.4f}")


if __name__ == "__main__":
    main()
