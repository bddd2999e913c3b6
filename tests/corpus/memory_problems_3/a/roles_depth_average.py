"""Monocular depth: the trained network has a slowly moving average, which is what is evaluated."""
import copy

import torch
from torch import nn


class Up(nn.Module):
    def __init__(self, inputs, skip, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(inputs + skip, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())

    def forward(self, x, skip):
        x = nn.functional.interpolate(x, size=skip.shape[-2:], mode="nearest")
        return self.body(torch.cat([x, skip], dim=1))


class DepthNet(nn.Module):
    def __init__(self, widths=(64, 128, 256, 512, 1024)):
        super().__init__()
        self.encoder, previous = nn.ModuleList(), 3
        for width in widths:
            self.encoder.append(nn.Sequential(
                nn.Conv2d(previous, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.SiLU(),
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU(),
            ))
            previous = width
        self.decoder = nn.ModuleList(
            Up(high, low, low) for high, low in zip(widths[::-1], widths[-2::-1])
        )
        self.depth = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        skips = []
        for stage in self.encoder:
            x = stage(x)
            skips.append(x)
        x = skips.pop()
        for up in self.decoder:
            x = up(x, skips.pop())
        return nn.functional.softplus(self.depth(x))


class MovingAverage:
    def __init__(self, network, decay=0.999):
        self.decay = decay
        self.shadow = copy.deepcopy(network).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, network):
        for mean, value in zip(self.shadow.parameters(), network.parameters()):
            mean.lerp_(value, 1 - self.decay)
        for mean, value in zip(self.shadow.buffers(), network.buffers()):
            mean.copy_(value)


class DepthTraining:
    def __init__(self, batch=6, size=(192, 256)):
        self.shape = (batch, 3, *size)
        self.network = DepthNet().cuda()
        self.average = MovingAverage(self.network)
        self.optimizer = torch.optim.NAdam(self.network.parameters(), lr=2e-4)

    def batch(self):
        images = torch.zeros(self.shape, device="cuda")
        truth = torch.ones(self.shape[0], 1, self.shape[2] // 2, self.shape[3] // 2, device="cuda")
        return images, truth

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        images, truth = self.batch()
        error = (self.network(images) + 1e-3).log() - truth.log()
        loss = error.pow(2).mean() - 0.5 * error.mean().pow(2)
        loss.backward()
        self.optimizer.step()
        self.average.update(self.network)
        return loss.item()

    @torch.inference_mode()
    def evaluate(self):
        images, truth = self.batch()
        return (self.average.shadow(images) - truth).abs().mean().item()

    def run(self, steps=80):
        for step in range(steps):
            loss = self.step()
            if step % 20 == 19:
                print(f"step {step + 1}: loss {loss:.4f}, error of the average {self.evaluate():.4f}")


if __name__ == "__main__":
    DepthTraining().run()
