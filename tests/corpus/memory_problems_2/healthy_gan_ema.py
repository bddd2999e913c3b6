"""Healthy: a GAN with two optimizers, lazy R1 regularisation and an averaged generator that starts late.

Why it may look like a leak: optimizer states appear at the first steps, the averaged copy at step 60, the penalty's
double backward only every eighth step, and the samples kept for the grid grow till there are sixteen.
Why it is none: everything appears once; the penalty uses torch.autograd.grad, the average is updated without grad.
"""
import copy
from collections import deque
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    latent: int = 64
    channels: int = 32
    batch_size: int = 32
    steps: int = 200
    penalty_every: int = 8
    ema_start: int = 60
    ema_decay: float = 0.995
    grid_every: int = 10
    grid_size: int = 16


class Generator(nn.Module):
    def __init__(self, latent, channels):
        super().__init__()
        self.project = nn.Linear(latent, channels * 8 * 16)
        self.net = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(channels * 8, channels * 4, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2), nn.Conv2d(channels * 4, channels * 2, 3, padding=1), nn.LeakyReLU(0.2),
            nn.Upsample(scale_factor=2), nn.Conv2d(channels * 2, 3, 3, padding=1), nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.project(z).view(len(z), -1, 4, 4))


class Discriminator(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(channels, channels * 2, 3, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(channels * 2, channels * 4, 3, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(),
            nn.Linear(channels * 4 * 16, 1),
        )

    def forward(self, images):
        return self.net(images).squeeze(1)


class Averaged:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, source):
        for average, parameter in zip(self.model.parameters(), source.parameters()):
            average.lerp_(parameter, 1.0 - self.decay)


class Gan:
    def __init__(self, config, device):
        self.config, self.device = config, device
        self.generator = Generator(config.latent, config.channels).to(device)
        self.discriminator = Discriminator(config.channels).to(device)
        self.optimizer_g = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.0, 0.99))
        self.optimizer_d = torch.optim.RMSprop(self.discriminator.parameters(), lr=2e-4, momentum=0.1)
        self.averaged = None
        self.grid = deque(maxlen=config.grid_size)

    def noise(self):
        return torch.randn(self.config.batch_size, self.config.latent, device=self.device)

    def penalty(self, real):
        real = real.detach().requires_grad_(True)
        gradient, = torch.autograd.grad(self.discriminator(real).sum(), real, create_graph=True)
        return gradient.square().sum(dim=(1, 2, 3)).mean()

    def discriminator_step(self, real, step):
        with torch.no_grad():
            fake = self.generator(self.noise())
        loss = (nn.functional.softplus(self.discriminator(fake)) +
                nn.functional.softplus(-self.discriminator(real))).mean()
        if step % self.config.penalty_every == 0:
            loss = loss + 5.0 * self.config.penalty_every * self.penalty(real)
        self.optimizer_d.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer_d.step()
        return loss.item()

    def generator_step(self):
        loss = nn.functional.softplus(-self.discriminator(self.generator(self.noise()))).mean()
        self.optimizer_g.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer_g.step()
        return loss.item()

    @torch.no_grad()
    def add_to_grid(self):
        model = self.generator if self.averaged is None else self.averaged.model
        self.grid.append(model(self.noise()))

    def train(self):
        for step in range(1, self.config.steps + 1):
            real = torch.rand(self.config.batch_size, 3, 32, 32).to(self.device) * 2 - 1
            loss_d, loss_g = self.discriminator_step(real, step), self.generator_step()
            if step == self.config.ema_start:
                self.averaged = Averaged(self.generator, self.config.ema_decay)
            elif self.averaged is not None:
                self.averaged.update(self.generator)
            if step % self.config.grid_every == 0:
                self.add_to_grid()
            if step % 40 == 0:
                print(f"step {step} d {loss_d:.3f} g {loss_g:.3f} {torch.cuda.memory_allocated() / 2**20:.0f} MiB")


def main():
    torch.manual_seed(0)
    Gan(Config(), torch.device("cuda")).train()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
