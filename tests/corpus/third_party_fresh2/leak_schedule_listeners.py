"""Each diffusion sampler listens to changes of the noise schedule through a list on the schedule's class, and a sampler is made for every request."""

import sys

import torch
from torch import nn


class Schedule:
    listeners = []

    def __init__(self, steps, device):
        self.steps = steps
        self.device = device
        self.scale(1.0)

    def scale(self, factor):
        self.betas = factor * torch.linspace(1e-4, 0.02, self.steps, device=self.device)
        self.alphas = torch.cumprod(1 - self.betas, dim=0)
        for listener in Schedule.listeners:
            listener(self)


class Sampler:
    def __init__(self, model, schedule, shape):
        self.model = model
        self.noise = torch.randn(shape, device=schedule.device)  # LEAK
        self.alphas = schedule.alphas
        Schedule.listeners.append(self.on_change)  # LEAK

    def on_change(self, schedule):
        self.alphas = schedule.alphas

    @torch.no_grad()
    def sample(self):
        image = self.noise.clone()
        for alpha in self.alphas.flip(0):
            predicted = self.model(image)
            image = (image - (1 - alpha).sqrt() * predicted) / (alpha.sqrt() + 1e-3)
        return image


def main():
    device = sys.argv[1]
    torch.manual_seed(41)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 192), nn.SiLU(), nn.Linear(192, 256)).to(device)
    schedule = Schedule(12, device)
    images = 0
    for request in range(320):
        if request % 50 == 49:
            schedule.scale(1.0 + request / 4000)
        images += len(Sampler(model, schedule, (4 + request % 5, 256)).sample())
    print(f"{images} images")


if __name__ == "__main__":
    main()
