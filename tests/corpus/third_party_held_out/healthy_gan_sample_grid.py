"""A GAN with two optimizers, R1 penalty and a grid of samples from fixed noise, of which only the latest is kept."""

import sys

import torch
from torch import nn


def generator(noise=24):
    return nn.Sequential(
        nn.Linear(noise, 64),
        nn.LeakyReLU(0.2),
        nn.Unflatten(1, (4, 4, 4)),
        nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1),
    )


def discriminator():
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(72, 1))


class AdversarialTrainer:
    def __init__(self, device):
        self.device = device
        self.generator = generator().to(device)
        self.discriminator = discriminator().to(device)
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.99))
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.99))
        self.fixed_noise = torch.randn(64, 24, device=device)
        self.grid = None

    def train_discriminator(self, real, penalty):
        real.requires_grad_(penalty)
        fake = self.generator(torch.randn(len(real), 24, device=self.device)).detach()
        on_real = self.discriminator(real)
        loss = nn.functional.softplus(-on_real).mean() + nn.functional.softplus(self.discriminator(fake)).mean()
        if penalty:
            (gradient,) = torch.autograd.grad(on_real.sum(), real, create_graph=True)
            loss = loss + 5.0 * gradient.square().sum(dim=(1, 2, 3)).mean()
        self.d_optimizer.zero_grad()
        loss.backward()
        self.d_optimizer.step()

    def train_generator(self, count):
        fake = self.generator(torch.randn(count, 24, device=self.device))
        loss = nn.functional.softplus(-self.discriminator(fake)).mean()
        self.g_optimizer.zero_grad()
        loss.backward()
        self.g_optimizer.step()

    @torch.no_grad()
    def draw(self):
        self.grid = self.generator(self.fixed_noise).clamp(-1, 1)


def main():
    torch.manual_seed(69)
    torch.set_num_threads(1)
    trainer = AdversarialTrainer(sys.argv[1])
    for step in range(220):
        real = torch.rand(16, 1, 8, 8, device=sys.argv[1])
        trainer.train_discriminator(real, penalty=step % 16 == 0)
        trainer.train_generator(16)
        if step % 20 == 0:
            trainer.draw()
    print(f"grid of {tuple(trainer.grid.shape)}")


if __name__ == "__main__":
    main()
