"""Population of walking controllers: one flat weight vector per individual."""
import random

import torch

SENSORS, HIDDEN, MOTORS = 64, 320, 24
SIZES = ((SENSORS, HIDDEN), (HIDDEN, HIDDEN // 4), (HIDDEN // 4, HIDDEN), (HIDDEN, MOTORS), (HIDDEN, 130))


class Individual:
    __slots__ = ("weights", "fitness")

    def __init__(self, weights):
        self.weights = weights
        self.fitness = 0.0

    def act(self, sensors):
        offset, x = 0, sensors
        for rows, columns in SIZES[:4]:
            w = self.weights[offset: offset + rows * columns].view(rows, columns)
            x = torch.tanh(x @ w)
            offset += rows * columns
        return x


def weight_count():
    return sum(rows * columns for rows, columns in SIZES)


class Population:
    def __init__(self, size, device, seed):
        self.rng = random.Random(seed)
        self.device = device
        self.members = [Individual(0.1 * torch.randn(weight_count(), device=device)) for _ in range(size)]

    def evaluate(self, terrain):
        for member in self.members[:: max(1, len(self.members) // 200)]:
            member.act(terrain)
        for member in self.members:
            member.fitness = self.rng.gauss(0.0, 1.0)

    def select(self, fraction):
        self.members.sort(key=lambda m: m.fitness, reverse=True)
        self.members = self.members[: int(fraction * len(self.members))]
        return self.members
