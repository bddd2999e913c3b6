"""Traffic forecast on a road graph: micro-batches, and a slow copy of the weights for the forecasts."""
import copy
import random

import torch
from torch import nn


class RoadNet(nn.Module):
    def __init__(self, roads=800, steps_in=24, steps_out=12, width=512, depth=4):
        super().__init__()
        self.inp = nn.Linear(steps_in, width)
        self.places = nn.Parameter(torch.zeros(roads, width))
        self.spread = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.think = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth))
        self.out = nn.Linear(width, steps_out)
        self.register_buffer("adjacency", torch.eye(roads).roll(1, 0))

    def forward(self, speeds):
        x = self.inp(speeds) + self.places
        for spread, think in zip(self.spread, self.think):
            x = x + torch.relu(self.adjacency @ spread(x))
            x = x + think(x)
        return self.out(x)


class SlowCopy:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def follow(self, model):
        for slow, fast in zip(self.model.parameters(), model.parameters()):
            slow.lerp_(fast, 1 - self.decay)


class Accumulator:
    """Adds up gradients of `every` micro-batches in place before each step."""

    def __init__(self, optimizer, every):
        self.optimizer, self.every, self.seen = optimizer, every, 0

    def backward(self, loss):
        (loss / self.every).backward()
        self.seen += 1
        if self.seen % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
            return True
        return False


def sensors(count, batch, rng):
    for _ in range(count):
        level = rng.uniform(20, 90)
        yield torch.full((batch, 800, 24), level), torch.full((batch, 800, 12), level)


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    model = RoadNet().cuda()
    slow = SlowCopy(model, decay=0.99)
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    accumulator = Accumulator(optimizer, every=4)
    for number, (speeds, target) in enumerate(sensors(160, 8, rng), 1):
        loss = nn.functional.l1_loss(model(speeds.cuda()), target.cuda())
        if accumulator.backward(loss):
            slow.follow(model)
        if number % 40 == 0:
            with torch.inference_mode():
                error = (slow.model(speeds.cuda()) - target.cuda()).abs().mean().item()
            print(f"micro-batch {number} loss {loss.item():.3f} slow {error:.3f}", flush=True)


if __name__ == "__main__":
    main()
