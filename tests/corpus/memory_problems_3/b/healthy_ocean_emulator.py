"""Trains an ocean emulator; the number of days it is rolled out grows in training."""
import argparse
import contextlib

import torch
from torch import nn
import torch.nn.functional as F


class SeaStep(nn.Module):
    """One day ahead on a latitude-longitude grid."""

    def __init__(self, fields=6, width=64, depth=3):
        super().__init__()
        self.lift = nn.Conv2d(fields + 1, width, 3)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3) for _ in range(depth))
        self.drop = nn.Conv2d(width, fields, 1)

    @staticmethod
    def wrap(x):
        x = F.pad(x, (1, 1, 0, 0), mode="circular")
        return F.pad(x, (0, 0, 1, 1), mode="replicate")

    def forward(self, state, forcing):
        x = F.gelu(self.lift(self.wrap(torch.cat([state, forcing], dim=1))))
        for conv in self.body:
            x = x + F.gelu(conv(self.wrap(x)))
        return state + self.drop(x)


class Reanalysis:
    def __init__(self, grid, fields, seed):
        self.grid, self.fields = grid, fields
        self.generator = torch.Generator().manual_seed(seed)

    def window(self, days, batch):
        base = torch.rand(batch, 1, self.fields, 1, 1, generator=self.generator)
        states = base.expand(-1, days + 1, -1, *self.grid)
        forcing = torch.rand(batch, days, 1, 1, 1, generator=self.generator).expand(-1, -1, -1, *self.grid)
        return states, forcing


class Horizon:
    """1 day at first, a day more each period, up to the longest rollout."""

    def __init__(self, period, longest):
        self.period, self.longest = period, longest

    def __call__(self, step):
        return min(self.longest, 1 + step // self.period)


@contextlib.contextmanager
def section(name):
    before = torch.cuda.memory_allocated()
    yield
    print(f"{name}: {before >> 20} -> {torch.cuda.memory_allocated() >> 20} MiB, "
          f"peak {torch.cuda.max_memory_allocated() >> 20} MiB", flush=True)


def rollout_loss(model, states, forcing):
    state, total = states[:, 0], 0.0
    for day in range(forcing.shape[1]):
        state = model(state, forcing[:, day])
        total = total + F.l1_loss(state, states[:, day + 1])
    return total / forcing.shape[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--longest", type=int, default=8)
    args = parser.parse_args([])
    torch.manual_seed(0)
    data = Reanalysis((90, 180), fields=6, seed=1)
    horizon = Horizon(period=10, longest=args.longest)
    model = SeaStep().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = 0
    while done < args.steps:
        days = horizon(done)
        with section(f"steps {done}-{done + 9}, {days} days"):
            for _ in range(10):
                states, forcing = data.window(days, batch=2)
                loss = rollout_loss(model, states.cuda(), forcing.cuda())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                done += 1
    print("final loss", loss.item())


if __name__ == "__main__":
    main()
