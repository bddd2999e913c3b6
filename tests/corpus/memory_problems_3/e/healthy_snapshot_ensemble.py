"""Snapshot ensembling for storm nowcasting: cyclic learning rate, one snapshot per cycle, averaged forecasts."""
import copy
import logging
import math

import torch
from torch import nn
from torch.nn import functional as F

logger = logging.getLogger("nowcast")

CYCLES = 6
STEPS_PER_CYCLE = 30
FORECASTS = 40


class Nowcaster(nn.Module):
    def __init__(self, history=6, lead=6, width=192, depth=6):
        super().__init__()
        self.inp = nn.Conv2d(history, width, 4, stride=4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.Conv2d(width, 2 * width, 3, padding=1), nn.GELU(),
                          nn.Conv2d(2 * width, width, 1)) for _ in range(depth))
        self.out = nn.ConvTranspose2d(width, lead, 4, stride=4)

    def forward(self, x):
        h = self.inp(x)
        for b in self.blocks:
            h = h + b(h)
        return F.softplus(self.out(h))


class RadarArchive:
    def __init__(self, size=96):
        self.size = size
        self.gen = torch.Generator().manual_seed(0)

    def batch(self, n):
        frames = torch.rand(n, 12, self.size, self.size, generator=self.gen)
        return frames[:, :6].cuda(), frames[:, 6:].cuda()


class SnapshotEnsemble:
    def __init__(self):
        self.members = []

    def add(self, model):
        member = copy.deepcopy(model).eval()
        for p in member.parameters():
            p.grad = None
        self.members.append(member.requires_grad_(False))

    @torch.no_grad()
    def forecast(self, x):
        outputs = torch.stack([m(x) for m in self.members])
        return outputs.mean(dim=0), outputs.std(dim=0)


def cyclic_lr(step, base=2e-3):
    return base / 2 * (math.cos(math.pi * (step % STEPS_PER_CYCLE) / STEPS_PER_CYCLE) + 1)


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    torch.manual_seed(1)
    model, data, ensemble = Nowcaster().cuda(), RadarArchive(), SnapshotEnsemble()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)
    for step in range(CYCLES * STEPS_PER_CYCLE):
        optimizer.param_groups[0]["lr"] = cyclic_lr(step)
        x, y = data.batch(4)
        loss = F.l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % STEPS_PER_CYCLE == 0:
            ensemble.add(model)
            logger.info("cycle %d: loss %.4f, %d members", (step + 1) // STEPS_PER_CYCLE, loss.item(), len(ensemble.members))
    error = 0.0
    for _ in range(FORECASTS):
        x, y = data.batch(4)
        mean, spread = ensemble.forecast(x)
        error += F.l1_loss(mean, y).item()
    logger.info("ensemble error %.4f, spread of the last forecast %.4f", error / FORECASTS, spread.mean().item())


if __name__ == "__main__":
    main()
