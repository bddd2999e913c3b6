"""Trains a small GAN whose critic is regularised by the norm of its gradient at the real images (R1).

Report: https://github.com/pytorch/pytorch/issues/4661 ("backward(create_graph=True) should raise a warning for
        potential memory leak"; the same in https://github.com/pytorch/pytorch/issues/7343)
Cause:  backward(create_graph=True) stores in real.grad a gradient whose graph leads back to real: a cycle that
        neither reference counts nor Python's collector can undo, one batch with its graph per step.
Line:   scores.sum().backward(create_graph=True)
Cure:   use torch.autograd.grad(scores.sum(), real, create_graph=True), or set real.grad = None after the step.
"""
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message="Using backward")


class Generator(nn.Module):
    def __init__(self, latent=128, channels=64):
        super().__init__()
        self.project = nn.Linear(latent, channels * 4 * 16)
        self.net = nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(channels * 4, channels * 2, 3, padding=1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(channels * 2, channels, 3, padding=1), nn.ReLU(),
            nn.Upsample(scale_factor=2), nn.Conv2d(channels, 3, 3, padding=1), nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.project(z).view(len(z), -1, 4, 4))


class Critic(nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.Softplus(), nn.AvgPool2d(2),
            nn.Conv2d(channels, channels * 2, 3, padding=1), nn.Softplus(), nn.AvgPool2d(2),
            nn.Conv2d(channels * 2, channels * 4, 3, padding=1), nn.Softplus(), nn.AvgPool2d(2),
        )
        self.score = nn.Linear(channels * 4 * 16, 1)

    def forward(self, images):
        return self.score(self.net(images).flatten(1)).squeeze(1)


class GanTrainer:
    def __init__(self, device, latent=128, batch_size=64, gamma=10.0):
        self.device = device
        self.latent = latent
        self.batch_size = batch_size
        self.gamma = gamma
        self.generator = Generator(latent).to(device)
        self.critic = Critic().to(device)
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.0, 0.99))
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=2e-4, betas=(0.0, 0.99))

    def noise(self):
        return torch.randn(self.batch_size, self.latent, device=self.device)

    def real_images(self):
        return torch.rand(self.batch_size, 3, 32, 32).mul_(2).sub_(1).to(self.device)

    def gradient_penalty(self, real):
        scores = self.critic(real)
        scores.sum().backward(create_graph=True)  # CAUSE
        return real.grad.square().sum(dim=(1, 2, 3)).mean()

    def critic_step(self):
        real = self.real_images().requires_grad_(True)
        penalty = self.gradient_penalty(real)
        self.critic_optimizer.zero_grad()
        with torch.no_grad():
            fake = self.generator(self.noise())
        loss = nn.functional.softplus(self.critic(fake)).mean() + nn.functional.softplus(-self.critic(real)).mean()
        loss = loss + 0.5 * self.gamma * penalty
        loss.backward()
        self.critic_optimizer.step()
        return loss.item()

    def generator_step(self):
        self.generator_optimizer.zero_grad()
        loss = nn.functional.softplus(-self.critic(self.generator(self.noise()))).mean()
        loss.backward()
        self.generator_optimizer.step()
        return loss.item()

    def fit(self, steps=100):
        for step in range(steps):
            critic_loss = self.critic_step()
            generator_loss = self.generator_step()
            if step % 20 == 0:
                print(f"{step:4d} critic {critic_loss:.3f} generator {generator_loss:.3f}")


def main():
    torch.manual_seed(0)
    GanTrainer(torch.device("cuda")).fit()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
