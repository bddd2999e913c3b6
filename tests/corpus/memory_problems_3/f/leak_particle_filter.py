"""Differentiable-map particle filter for a robot fleet.

Scratch memory for the weights is taken from an arena and goes back when its user is gone.
"""
import itertools
import math
import random
import weakref

import torch
import torch.nn as nn

PARTICLES = 16_384
SCANS = 200
BEAMS = 12


class Arena:
    """Reuses scratch blocks of equal shape."""

    def __init__(self, device):
        self.device = device
        self.free = {}
        self.handed_out = 0

    def take(self, owner, shape):
        blocks = self.free.get(shape)
        block = blocks.pop() if blocks else torch.empty(shape, device=self.device)
        self.handed_out += 1
        weakref.finalize(owner, self.give_back, block)
        return block

    def give_back(self, block):
        self.free.setdefault(tuple(block.shape), []).append(block)


class BeamModel(nn.Module):
    def __init__(self, cells=128):
        super().__init__()
        self.map = nn.Parameter(torch.rand(cells, cells))
        self.cells = cells

    def ranges(self, pose):
        angles = torch.linspace(-math.pi / 2, math.pi / 2, BEAMS, device=pose.device)
        heading = pose[:, 2:3] + angles
        x = (pose[:, 0:1] + heading.cos()).clamp(0, 1) * (self.cells - 1)
        y = (pose[:, 1:2] + heading.sin()).clamp(0, 1) * (self.cells - 1)
        return self.map[x.long(), y.long()]


class Robot:
    def __init__(self, name):
        self.name = name
        self.pose = torch.rand(PARTICLES, 3, device="cuda")
        self.estimate = None


class ParticleFilter:
    def __init__(self, model, arena):
        self.model, self.arena = model, arena

    def motion(self, robot, control):
        noise = 0.01 * torch.randn_like(robot.pose)
        robot.pose = robot.pose + control.to(robot.pose.device) + noise

    def weigh(self, robot, scan):
        scratch = self.arena.take(robot, (PARTICLES, BEAMS))
        torch.sub(self.model.ranges(robot.pose), scan.to("cuda"), out=scratch)
        return (-scratch.pow(2).sum(1) / 0.02).softmax(0)

    def resample(self, robot, weights):
        positions = (torch.arange(PARTICLES, device="cuda") + 0.5) / PARTICLES
        picks = torch.searchsorted(weights.cumsum(0), positions).clamp(max=PARTICLES - 1)
        robot.pose = robot.pose[picks]

    @torch.no_grad()
    def update(self, robot, control, scan):
        self.motion(robot, control)
        weights = self.weigh(robot, scan)
        robot.estimate = (weights.unsqueeze(1) * robot.pose).sum(0)
        self.resample(robot, weights)


def fleet_messages(robots, seed):
    rng = random.Random(seed)
    for robot in itertools.islice(itertools.cycle(robots), SCANS):
        control = torch.tensor([rng.gauss(0, 0.01), rng.gauss(0, 0.01), rng.gauss(0, 0.05)])
        yield robot, control, torch.rand(BEAMS)


def main():
    torch.manual_seed(0)
    arena = Arena("cuda")
    localiser = ParticleFilter(BeamModel().cuda(), arena)
    robots = [Robot(f"agv-{i}") for i in range(4)]
    for n, (robot, control, scan) in enumerate(fleet_messages(robots, seed=2), 1):
        localiser.update(robot, control, scan)
        if n % 50 == 0:
            x, y, _ = robot.estimate.tolist()
            print(f"scan {n}: {robot.name} at ({x:.2f}, {y:.2f}), {arena.handed_out} blocks handed out")


if __name__ == "__main__":
    main()
